/**
 * The bridge between a kernel and the notebook that is open in JupyterLab or Notebook 7. It has no view.
 *
 * It tells the kernel what the document holds of its conversations, and which cells, and does what the kernel asks:
 * writes changes, inserts a cell, takes what was said out of outputs, marks cells, shows a notice. The kinds of messages
 * are listed in `llamanb/widgets/protocol.py`.
 */

const PREFIX = "llamanb";
const NOTICE_MILLISECONDS = 12000;
/** Where a notebook keeps its bridge, so that the one of a kernel that was restarted gives way to the next. */
const BRIDGE = Symbol.for("llamanb.bridge");
const INTRODUCTION_MILLISECONDS = [50, 150, 300, 500, 800, 3000];

/** @param {string} part a part of a JSON pointer (RFC 6901) */
const unescaped = (part) => part.replaceAll("~1", "/").replaceAll("~0", "~");

/**
 * Apply a JSON Patch (RFC 6902) of `add`, `replace` and `remove` in place.
 * @param {Record<string, any>} root
 * @param {{op: string, path: string, value?: any}[]} patch
 */
function apply(root, patch) {
  for (const { op, path, value } of patch) {
    const keys = path.split("/").slice(1).map(unescaped);
    const last = keys.pop();
    let place = root;
    for (const key of keys) place = place[key];
    if (Array.isArray(place)) place.splice(Number(last), op === "add" ? 0 : 1, ...(op === "remove" ? [] : [value]));
    else if (op === "remove") delete place[last];
    else place[last] = value;
  }
}

/**
 * Return the element that shows a notebook; there may be several of them on a page.
 * @param {any} context the notebook's document context
 */
function panelOf(context) {
  const panels = [...document.querySelectorAll(".jp-NotebookPanel")];
  if (panels.length < 2) return panels[0];
  const path = context.localPath ?? context.path;
  const tab = [...document.querySelectorAll("[data-id][title]")].find((element) =>
    element.getAttribute("title").split("\n").some((line) => line.endsWith(`: ${path}`)),
  );
  return panels.find((panel) => panel.id === tab?.getAttribute("data-id"));
}

/** @param {any} cell whether it is one that asks a model */
const asks = (cell) => cell.cell_type === "code" && /^\s*%%?chat\b/m.test(cell.getSource());

/** Shows short texts in a corner of the page, for a while or until they are closed. */
class Notices {
  /** @param {string} text */
  show(text) {
    let corner = document.querySelector(".llamanb-notices");
    if (!corner) {
      corner = document.createElement("div");
      corner.className = "llamanb-notices";
      document.body.append(corner);
    }
    const notice = document.createElement("div");
    notice.className = "llamanb-notice";
    notice.setAttribute("role", "status");
    notice.append(text);
    const close = document.createElement("button");
    close.textContent = "×";
    close.setAttribute("aria-label", "Close");
    close.addEventListener("click", () => notice.remove());
    notice.append(close);
    corner.append(notice);
    setTimeout(() => notice.remove(), NOTICE_MILLISECONDS);
  }
}

/** Keeps one notebook and one kernel in step. */
class Bridge {
  /**
   * @param {any} model the widget's model
   * @param {any} context the notebook's document context
   */
  constructor(model, context) {
    this.model = model;
    this.context = context;
    this.notebook = context.model.sharedModel;
    this.client = crypto.randomUUID?.() ?? String(Math.random());
    this.revision = 0;
    this.seen = "";
    this.known = this.notebook.cells.map((cell) => cell.id);
    this.reported = this.cells().join();
    this.split = new Map();
    this.writing = false;
    this.answered = false;
    this.style = document.createElement("style");
    this.notices = new Notices();
    this.stale = [];
  }

  start() {
    this.notebook[BRIDGE]?.stop();
    this.notebook[BRIDGE] = this;
    document.head.append(this.style);
    this.changed = (_, change) => {
      if (change.metadataChange && !this.writing) this.documentChanged();
      if (change.cellsChange) this.cellsChanged();
    };
    this.notebook.changed.connect(this.changed);
    this.received = (message) => this.receive(message);
    this.model.on("msg:custom", this.received);
    this.seen = JSON.stringify(this.content());
    this.introduce();
  }

  /**
   * Send the document for the first time, and again until the kernel answers: JupyterLab sends what a widget says early
   * on to the kernel's main thread, where it waits for the cells that are queued, and later to a thread of its own.
   */
  introduce() {
    this.sendDocument();
    for (const milliseconds of INTRODUCTION_MILLISECONDS) {
      setTimeout(() => {
        if (!this.answered && this.revision === 0) this.sendDocument();
      }, milliseconds);
    }
  }

  stop() {
    this.notebook.changed.disconnect(this.changed);
    this.model.off("msg:custom", this.received);
    this.style.remove();
  }

  /** What the document holds of conversations: every key of its metadata that is ours. */
  content() {
    const metadata = this.notebook.getMetadata();
    return Object.fromEntries(Object.entries(metadata).filter(([key]) => key.startsWith(PREFIX)));
  }

  /** The ids of the cells that may show an answer: those with code. */
  cells() {
    return this.notebook.cells.filter((cell) => cell.cell_type === "code").map((cell) => cell.id);
  }

  /** The place of a cell among all cells; -1 where it is not there. */
  place(id) {
    return this.notebook.cells.findIndex((cell) => cell.id === id);
  }

  sendDocument() {
    this.model.send({
      kind: "document",
      id: this.client,
      revision: this.revision,
      content: this.content(),
      cells: this.cells(),
      session: this.context.sessionContext.session?.kernel?.clientId ?? null,
      writable: this.context.contentsModel?.writable ?? true,
    });
  }

  /** Another than this bridge has changed the metadata: the kernel must see it before it may write again. */
  documentChanged() {
    const now = JSON.stringify(this.content());
    if (now === this.seen) return;
    this.seen = now;
    this.revision += 1;
    this.sendDocument();
  }

  cellsChanged() {
    const cells = this.cells();
    if (cells.join() !== this.reported) this.model.send({ kind: "cells", id: this.client, cells, moved: this.moved() });
    this.reported = cells.join();
    this.known = this.notebook.cells.map((cell) => cell.id);
    this.mark(this.stale);
  }

  /**
   * Return which cell has become which. Of a cell that is split, the lower half keeps the id; the upper one, which still
   * asks, is new, and what was said is its. When that is undone, it goes back.
   */
  moved() {
    const moved = [];
    const { cells } = this.notebook;
    const isNew = (cell) => cell !== undefined && !this.known.includes(cell.id);
    cells.forEach((cell, index) => {
      if (isNew(cell) || asks(cell)) return;
      let upper;
      for (let above = index - 1; isNew(cells[above]); above -= 1) if (asks(cells[above])) upper = cells[above].id;
      if (upper === undefined) return;
      moved.push([cell.id, upper]);
      this.split.set(upper, cell.id);
    });
    for (const [upper, lower] of this.split) {
      if (this.place(upper) >= 0 || !cells.some((cell) => cell.id === lower && asks(cell))) continue;
      moved.push([upper, lower]);
      this.split.delete(upper);
    }
    return moved;
  }

  receive(message) {
    if (message.client !== this.client) return;
    this.answered = true;
    try {
      this[`on_${message.kind}`](message);
      this.model.send({ kind: "done", id: this.client, request: message.id });
    } catch (error) {
      this.model.send({ kind: "failed", id: this.client, request: message.id, error: String(error) });
    }
  }

  on_write({ revision, patch }) {
    if (revision !== this.revision) throw new Error("the document was changed in between");
    const content = structuredClone(this.content());
    const before = Object.keys(content);
    apply(content, patch);
    this.writing = true;
    try {
      this.notebook.transact(() => {
        for (const key of new Set(patch.map(({ path }) => unescaped(path.split("/")[1])))) {
          if (key in content) this.notebook.setMetadata(key, content[key]);
          else if (before.includes(key)) this.notebook.deleteMetadata(key);
        }
      }, false);
    } finally {
      this.writing = false;
    }
    this.seen = JSON.stringify(this.content());
  }

  /** Insert a cell below another, unless one with the same first line is there: the fork's cell from an earlier run. */
  on_insert({ below, source }) {
    const first = source.split("\n")[0];
    if (this.notebook.cells.some((cell) => cell.getSource().split("\n")[0] === first)) return;
    const index = this.place(below);
    if (index < 0) throw new Error("the cell that asked is not in this notebook");
    this.notebook.insertCell(index + 1, { cell_type: "code", source, metadata: {} });
  }

  /** Take out of outputs what they carry of conversations; of the given cells, all that they show. */
  on_strip({ cells, carried }) {
    for (const cell of this.notebook.cells) {
      if (cell.cell_type !== "code") continue;
      const outputs = cell.getOutputs();
      let left = cells.includes(cell.id) ? [] : outputs;
      if (carried) {
        left = left.map((output) => {
          if (!output.metadata?.[PREFIX]) return output;
          const { [PREFIX]: _, ...metadata } = output.metadata;
          return { ...output, metadata };
        });
      }
      if (JSON.stringify(left) !== JSON.stringify(outputs)) cell.setOutputs(left);
    }
  }

  on_mark({ stale }) {
    this.mark(stale);
  }

  /** @param {string[]} stale ids of cells that answer to something that is gone */
  mark(stale) {
    this.stale = stale;
    const panel = panelOf(this.context);
    const places = stale.map((id) => this.place(id)).filter((index) => index >= 0);
    const cell = (index) => `#${CSS.escape(panel.id)} .jp-Cell[data-windowed-list-index="${index}"]`;
    this.style.textContent =
      panel && places.length
        ? `${places.map((index) => `${cell(index)} .jp-OutputArea-child`).join(", ")} { opacity: 0.55; }
           ${places.map((index) => `${cell(index)} .jp-Cell-outputArea::before`).join(", ")} {
             content: "Answers to something that is gone; run it again.";
             display: block;
             padding: 4px 0 0 var(--jp-cell-prompt-width, 64px);
             color: var(--jp-warn-color0, #b45309);
             font: italic var(--jp-ui-font-size1, 13px) var(--jp-ui-font-family, sans-serif);
           }`
        : "";
  }

  on_notice({ text }) {
    this.notices.show(text);
  }
}

export default {
  async initialize({ model }) {
    const context = model.widget_manager?.context;
    if (!context?.model?.sharedModel) return undefined;
    await context.ready;
    const bridge = new Bridge(model, context);
    bridge.start();
    return () => bridge.stop();
  },
};
