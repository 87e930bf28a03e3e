/**
 * The chat panel: a view on a session in the kernel. It keeps nothing of its own but what a person is typing.
 *
 * Everything that a model wrote comes as HTML that Python has rendered and sanitised. The kinds of messages are listed
 * in `llamanb/widgets/protocol.py`.
 */

const SLOW_MILLISECONDS = 8000;
const STICKY_PIXELS = 48;
const CHECK_MILLISECONDS = 200;
/** The narrowest tree in which words can be read. */
const TREE_PIXELS = 260;
const ICONS = {
  adopt: "M3 8h8M8 5l3 3-3 3M13 3v10",
  branch: "M5 3v10M5 10c0-4 6-2 6-5M11 5a1.5 1.5 0 1 0 0-.1M5 3a1.5 1.5 0 1 0 0-.1M5 13a1.5 1.5 0 1 0 0-.1",
  check: "M3 8.5l3.2 3L13 4.5",
  close: "M4 4l8 8M12 4l-8 8",
  continue: "M4 4l5 4-5 4zM11 4v8",
  copy: "M5.5 5.5h7v8h-7zM3.5 10.5v-8h7",
  down: "M8 3v10M4 9l4 4 4-4",
  edit: "M3 13l.6-2.8L11 2.8l2.2 2.2-7.4 7.4z",
  insert: "M3 3h10v4H3zM8 9.5v4M6 11.5h4",
  next: "M6 3.5L10.5 8 6 12.5",
  previous: "M10 3.5L5.5 8l4.5 4.5",
  regenerate: "M13 8a5 5 0 1 1-1.6-3.7M13 2v3h-3",
  remove: "M3 4.5h10M6 4.5V3h4v1.5M4.5 4.5l.6 8.5h5.8l.6-8.5",
  send: "M8 13V3M4 7l4-4 4 4",
  settings: "M2.5 5h5M11 5h2.5M2.5 11h2M8 11h5.5M9.2 3.2v3.6M6.2 9.2v3.6",
  stop: "M4.5 4.5h7v7h-7z",
  tree: "M4 2.5v11M4 6h4.5M4 11h4.5M9.5 4.5h3v3h-3zM9.5 9.5h3v3h-3z",
};
const SETTINGS = {
  temperature: ["Temperature", "0 takes the likeliest token; higher is more varied"],
  top_p: ["Top p", "tokens that make up this share of the probability; 1 is off"],
  top_k: ["Top k", "so many of the likeliest tokens; 0 is off"],
  min_p: ["Min p", "tokens with at least this share of the likeliest one's probability"],
  max_tokens: ["Most tokens", "the longest answer"],
  seed: ["Seed", "empty: it follows from the conversation; random: always another"],
};

/**
 * Make an element.
 * @param {string} tag
 * @param {Record<string, any>} [attributes] those that begin with "on" are listeners
 * @param {...(Node | string | null | false)} children
 * @returns {HTMLElement}
 */
function h(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) element.setAttribute(name, String(value));
  }
  element.append(...children.filter((child) => child !== null && child !== false && child !== undefined));
  return element;
}

/** @param {keyof typeof ICONS} name */
function icon(name) {
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  svg.setAttribute("viewBox", "0 0 16 16");
  svg.setAttribute("aria-hidden", "true");
  svg.setAttribute("class", `icon icon-${name}`);
  const path = document.createElementNS("http://www.w3.org/2000/svg", "path");
  path.setAttribute("d", ICONS[name]);
  svg.append(path);
  return svg;
}

/**
 * A button with an icon and a name.
 * @param {keyof typeof ICONS} name
 * @param {string} label
 * @param {(event: Event) => void} act
 * @param {Record<string, any>} [attributes]
 */
const iconButton = (name, label, act, attributes = {}) =>
  h("button", { type: "button", class: "icon-button", title: label, "aria-label": label, onclick: act, ...attributes }, icon(name));

/** What all views of one panel have in common: the connection to the kernel, and what it has sent. */
class Panel {
  /**
   * @param {any} model
   * @param {string} style
   */
  constructor(model, style) {
    this.model = model;
    this.style = style;
    this.items = new Map();
    /** @type {any} */
    this.view = null;
    /** @type {{blocks: string[], reasoning: any, stage: string} | null} */
    this.stream = null;
    this.draft = "";
    this.lost = "";
    this.views = new Set();
    this.waiting = new Map();
    this.n_requests = 0;
    this.context = model.widget_manager?.context ?? null;
    model.on("msg:custom", (message) => this.receive(message));
    this.context?.sessionContext?.statusChanged?.connect((_, status) => {
      if (["restarting", "autorestarting", "dead", "terminating"].includes(status)) this.lose();
    });
    this.context?.sessionContext?.connectionStatusChanged?.connect((_, status) => {
      if (status === "disconnected") this.lose();
    });
    this.request("hello", { has_script: true }).catch((error) => this.tell(error.message, "error"));
  }

  /** The kernel that this panel talked to is gone. */
  lose() {
    this.lost = "The kernel of this panel is gone. Run this cell again to go on; what was said is kept in the notebook.";
    for (const { fail } of this.waiting.values()) fail(new Error("The kernel is gone."));
    this.waiting.clear();
    this.stream = null;
    for (const view of this.views) view.draw();
  }

  /**
   * Ask the kernel for something; the promise is always settled, at the latest when the kernel is gone.
   * @param {string} kind
   * @param {Record<string, any>} [content]
   * @returns {Promise<any>}
   */
  request(kind, content = {}) {
    if (this.lost) return Promise.reject(new Error(this.lost));
    this.n_requests += 1;
    const id = `${Date.now()}-${this.n_requests}`;
    return new Promise((resolve, fail) => {
      const slow = setTimeout(() => {
        this.tell("The kernel is busy; this is done as soon as it can.", "note");
      }, SLOW_MILLISECONDS);
      const settle = (act) => (value) => {
        clearTimeout(slow);
        act(value);
      };
      this.waiting.set(id, { resolve: settle(resolve), fail: settle(fail) });
      this.model.send({ kind, id, ...content });
    });
  }

  /** @param {any} message */
  receive(message) {
    this[`on_${message.kind}`]?.(message);
  }

  on_done({ request, result }) {
    this.waiting.get(request)?.resolve(result);
    this.waiting.delete(request);
  }

  on_failed({ request, error }) {
    this.waiting.get(request)?.fail(new Error(error));
    this.waiting.delete(request);
  }

  on_view(message) {
    for (const [id, item] of Object.entries(message.items)) this.items.set(id, item);
    this.view = message;
    if (!message.answering) this.stream = null;
    for (const view of this.views) view.draw();
  }

  on_stream({ start, blocks, n_blocks, reasoning, stage }) {
    const before = this.stream?.blocks ?? [];
    this.stream = { blocks: [...before.slice(0, start), ...blocks].slice(0, n_blocks), reasoning, stage };
    for (const view of this.views) view.drawStream();
  }

  on_notice({ text, level, unsaid }) {
    if (unsaid && !this.draft) {
      this.draft = unsaid;
      for (const view of this.views) view.composer.restore();
    }
    this.tell(text, level);
  }

  /**
   * @param {string} text
   * @param {"note" | "error"} level
   */
  tell(text, level = "note") {
    for (const view of this.views) view.tell(text, level);
  }

  /** What a person asked on this path, oldest first. */
  asked() {
    return (this.view?.path ?? []).map((id) => this.items.get(id)).filter((item) => item?.role === "user");
  }

  /** @param {HTMLElement} el */
  show(el) {
    const view = new View(this, el);
    this.views.add(view);
    return () => {
      this.views.delete(view);
      view.remove();
    };
  }
}

/** One place where the panel is shown. */
class View {
  /**
   * @param {Panel} panel
   * @param {HTMLElement} el
   */
  constructor(panel, el) {
    this.panel = panel;
    this.el = el;
    this.messages = new Map();
    this.order = "";
    this.sticky = true;
    this.composer = new Composer(panel, this);
    this.branches = new BranchMenu(panel, this);
    this.drawer = new Drawer(panel, this);
    this.tree = new Tree(panel, this);
    this.log = h("div", { class: "log", role: "log", tabindex: 0, "aria-label": "Conversation", "aria-live": "off", onscroll: () => this.scrolled() });
    this.jump = h("button", { type: "button", class: "jump", hidden: true, onclick: () => this.toEnd() }, icon("down"), "Latest");
    this.banner = h("p", { class: "banner", role: "alert", hidden: true });
    this.status = h("p", { class: "status", role: "status" });
    this.modelName = h("span", { class: "model" });
    this.meter = h("span", { class: "bar" });
    this.count = h("span", { class: "count" });
    this.gauge = h("div", { class: "meter", role: "meter", "aria-label": "Context window", "aria-valuemin": 0 }, h("span", { class: "rail" }, this.meter), this.count);
    this.speed = h("span", { class: "speed" });
    this.resized = new ResizeObserver(() => this.keepPlace());
    this.resized.observe(this.log);
    this.root = h(
      "section",
      { class: "llamanb-panel", "aria-label": "Chat", "data-lm-suppress-shortcuts": "true", onkeydown: (event) => this.key(event) },
      h("style", {}, panel.style),
      h("header", { class: "head" }, this.branches.button, this.tree.button, this.modelName, this.gauge, this.drawer.button),
      this.branches.element,
      this.drawer.element,
      this.banner,
      h("div", { class: "body" }, this.tree.element, h("div", { class: "talk" }, this.log, this.jump)),
      this.composer.element,
      h("footer", { class: "foot" }, this.status, this.speed),
    );
    el.append(this.root);
    this.draw();
    requestAnimationFrame(() => this.toEnd());
  }

  remove() {
    this.resized.disconnect();
    this.tree.resized.disconnect();
    this.root.remove();
  }

  /** Close what opens in the same place as another part. */
  onlyOpen(part) {
    for (const other of [this.branches, this.drawer]) if (other !== part && part !== this.tree) other.open(false);
  }

  /** @param {KeyboardEvent} event */
  key(event) {
    if (event.key !== "Escape") return;
    if (this.branches.isOpen || this.drawer.isOpen) {
      this.branches.open(false);
      this.drawer.open(false);
      event.stopPropagation();
    }
  }

  /**
   * Ask the kernel, and say here what goes wrong.
   * @param {string} kind
   * @param {Record<string, any>} [content]
   */
  async ask(kind, content = {}) {
    this.tell("");
    try {
      return (await this.panel.request(kind, content)) ?? {};
    } catch (error) {
      this.tell(error.message, "error");
      return null;
    }
  }

  tell(text, level = "note") {
    this.status.textContent = text;
    this.status.className = `status ${level}`;
  }

  // -- drawing what the session holds

  draw() {
    const { view, lost } = this.panel;
    this.banner.hidden = !lost;
    this.banner.textContent = lost;
    this.root.classList.toggle("lost", Boolean(lost));
    this.composer.draw();
    if (!view) return;
    this.branches.draw();
    this.drawer.draw();
    this.tree.draw();
    this.drawMeter();
    this.drawMessages();
  }

  drawMeter() {
    const { meter, model } = this.panel.view;
    this.modelName.textContent = model;
    this.modelName.title = `Model: ${model}`;
    const known = meter.n_tokens !== null;
    const n_tokens = known ? meter.n_tokens : 0;
    const share = Math.min(1, n_tokens / meter.n_ctx);
    const words = known ? `${n_tokens.toLocaleString("en")} / ${meter.n_ctx.toLocaleString("en")}` : `? / ${meter.n_ctx.toLocaleString("en")}`;
    this.count.textContent = words;
    this.meter.style.width = `${100 * share}%`;
    this.gauge.classList.toggle("full", share > 0.85);
    this.gauge.setAttribute("aria-valuenow", n_tokens);
    this.gauge.setAttribute("aria-valuemax", meter.n_ctx);
    this.gauge.setAttribute("aria-valuetext", `${words} tokens`);
    this.gauge.title = `${words} tokens of the context window are used`;
    const { usage } = meter;
    this.speed.textContent = usage?.n_generated
      ? `${usage.n_cached.toLocaleString("en")} cached · ${usage.n_prefilled.toLocaleString("en")} read · ${usage.tokens_per_second} tokens/s`
      : "";
    this.speed.title = "The last answer: prompt tokens that were cached, prompt tokens that were read, and the speed of writing";
  }

  drawMessages() {
    const { view, items, stream } = this.panel;
    const keys = [...view.path];
    if (view.begun && keys.at(-1) !== view.begun) keys.push(view.begun);
    // The answer that is being written has no id yet; the element stays when it gets one, so that nothing jumps.
    const last = keys.at(-1);
    if (!view.answering && this.messages.has("answer")) {
      const element = this.messages.get("answer");
      this.messages.delete("answer");
      if (last && !this.messages.has(last) && items.get(last)?.role === "assistant") this.messages.set(last, element);
      else element.remove();
    }
    if (view.answering) {
      if (view.begun) {
        keys.pop();
        const begun = this.messages.get(view.begun);
        if (begun && !this.messages.has("answer")) {
          this.messages.delete(view.begun);
          this.messages.set("answer", begun);
        }
      }
      keys.push("answer");
    }
    const wanted = new Set(keys);
    for (const [key, message] of this.messages) {
      if (wanted.has(key)) continue;
      message.remove();
      this.messages.delete(key);
    }
    const shown = [];
    for (const key of keys) {
      let message = this.messages.get(key);
      if (!message) {
        message = new MessageView(this);
        this.messages.set(key, message);
      }
      if (key === "answer") message.drawStream(stream);
      else message.draw(key, items.get(key), view.places[key]);
      shown.push(message.element);
    }
    if (shown.length === 0) shown.push((this.empty ??= h("p", { class: "empty" }, "Nothing was said yet. Write below, or in a %%chat cell: it is one conversation.")));
    this.root.classList.toggle("answering", view.answering);
    shown.forEach((element, index) => {
      const there = this.log.children[index];
      if (there !== element) this.log.insertBefore(element, there ?? null);
    });
    while (this.log.children.length > shown.length) this.log.lastChild.remove();
    this.keepPlace();
  }

  drawStream() {
    this.messages.get("answer")?.drawStream(this.panel.stream);
    this.keepPlace();
  }

  // -- scrolling: the end stays in view where it was, and a reader's place where not

  scrolled() {
    this.sticky = this.log.scrollHeight - this.log.scrollTop - this.log.clientHeight < STICKY_PIXELS;
    this.jump.hidden = this.sticky;
  }

  keepPlace() {
    if (this.sticky) this.log.scrollTop = this.log.scrollHeight;
    else this.jump.hidden = false;
  }

  toEnd() {
    this.sticky = true;
    this.log.scrollTop = this.log.scrollHeight;
    this.jump.hidden = true;
  }

  // -- the notebook around it

  /** The document that this view stands in; null where none can be reached. */
  get notebook() {
    const shared = this.panel.context?.model?.sharedModel;
    return shared?.insertCell && this.place >= 0 ? shared : null;
  }

  get place() {
    return Number(this.root.closest(".jp-Cell")?.getAttribute("data-windowed-list-index") ?? -1);
  }

  /** Insert a code cell below the one that shows this. */
  insertCell(source) {
    this.notebook?.insertCell(this.place + 1, { cell_type: "code", source, metadata: {} });
  }

  async copy(text, button) {
    try {
      await navigator.clipboard.writeText(text);
    } catch {
      const area = h("textarea", { class: "off-screen" });
      area.value = text;
      this.root.append(area);
      area.select();
      document.execCommand("copy");
      area.remove();
    }
    const former = button.firstChild;
    button.replaceChildren(icon("check"));
    this.tell("Copied.");
    setTimeout(() => button.replaceChildren(former), 1200);
  }
}

/** One message. */
class MessageView {
  /** @param {View} view */
  constructor(view) {
    this.view = view;
    this.blocks = [];
    this.who = h("div", { class: "who" });
    this.text = h("div", { class: "text" });
    this.thought = h("details", { class: "reasoning", hidden: true });
    this.cards = h("div", { class: "cards" });
    this.note = h("p", { class: "note", hidden: true });
    this.actions = h("div", { class: "actions", role: "group", "aria-label": "What to do with this message" });
    this.form = h("div", { class: "form" });
    const head = h("div", { class: "message-head" }, this.who, this.actions);
    this.element = h("article", { class: "message" }, head, this.thought, this.text, this.cards, this.note, this.form);
  }

  remove() {
    this.element.remove();
  }

  /**
   * @param {string} id
   * @param {any} item
   * @param {any} place which of several it is
   */
  draw(id, item, place) {
    const state = JSON.stringify([id, place ?? null]);
    if (state === this.state) return;
    this.state = state;
    this.id = id;
    this.item = item;
    const name = { user: "You", assistant: "Model", system: "System prompt", tool: `Result of ${item.tool}` }[item.role];
    this.element.className = `message ${item.role}`;
    this.element.removeAttribute("aria-busy");
    this.element.setAttribute("aria-label", name);
    this.element.dataset.message = id;
    this.who.textContent = name;
    this.setBlocks(item.blocks);
    this.setReasoning(item.reasoning);
    this.cards.replaceChildren(...item.calls.map((call) => this.card(call)));
    this.note.hidden = !item.cut;
    this.note.textContent = item.cut ?? "";
    this.actions.replaceChildren(...this.buttons(item, place));
  }

  drawStream(stream) {
    this.state = "";
    this.element.className = "message assistant writing";
    this.element.setAttribute("aria-label", "Model");
    this.element.setAttribute("aria-busy", "true");
    delete this.element.dataset.message;
    this.who.textContent = "Model";
    this.cards.replaceChildren();
    this.form.replaceChildren();
    this.actions.replaceChildren();
    if (!stream) return;
    if (stream.blocks.length || !stream.stage) this.setBlocks(stream.blocks);
    this.setReasoning(stream.reasoning);
    this.note.hidden = !stream.stage;
    this.note.textContent = stream.stage;
  }

  /** Draw the pieces that differ from what is there. */
  setBlocks(blocks) {
    let same = 0;
    while (same < blocks.length && same < this.blocks.length && blocks[same] === this.blocks[same]) same += 1;
    while (this.text.children.length > same) this.text.lastChild.remove();
    for (const html of blocks.slice(same)) {
      const block = h("div", { class: "block" });
      block.innerHTML = html;
      for (const code of block.querySelectorAll(".llamanb-code")) this.addCodeButtons(code);
      this.text.append(block);
    }
    this.blocks = [...blocks];
  }

  setReasoning(reasoning) {
    this.thought.hidden = !reasoning;
    if (!reasoning) return;
    if (!this.thought.firstChild) this.thought.append(h("summary"), h("div", { class: "text" }));
    const [summary, text] = this.thought.children;
    summary.textContent = reasoning.title;
    const html = reasoning.blocks.join("");
    if (text.dataset.size !== String(html.length)) text.innerHTML = html;
    text.dataset.size = String(html.length);
  }

  card(call) {
    return h("details", { class: "card" }, h("summary", {}, "Calls ", h("code", {}, call.name)), h("pre", {}, call.arguments));
  }

  addCodeButtons(code) {
    const text = () => code.querySelector("code").textContent.replace(/\n$/, "");
    const copy = iconButton("copy", "Copy code", (event) => this.view.copy(text(), event.currentTarget));
    const insert = this.view.notebook && iconButton("insert", "Insert as a new cell below", () => this.view.insertCell(text()));
    code.querySelector("pre").setAttribute("tabindex", "0");
    code.prepend(h("div", { class: "code-head" }, h("span", {}, code.dataset.language || "text"), insert, copy));
  }

  buttons(item, place) {
    if (!["user", "assistant"].includes(item.role)) return [];
    const { view } = this;
    const buttons = [];
    /** What cannot be done while the model is answering says so, and is dim. */
    const idle = (act) => () => {
      if (view.panel.view.answering) view.tell("The model is answering; stop it first, or wait.");
      else act();
    };
    const dim = { class: "icon-button when-idle" };
    if (place) {
      const go = (id) => idle(() => view.ask("go", { message: id }));
      buttons.push(
        h(
          "span",
          { class: "pager" },
          iconButton("previous", "The one before", go(place.before), { ...dim, disabled: !place.before }),
          h("span", { "aria-label": `${place.number} of ${place.total}` }, `${place.number}/${place.total}`),
          iconButton("next", "The next one", go(place.after), { ...dim, disabled: !place.after }),
        ),
      );
    }
    buttons.push(iconButton("copy", "Copy", (event) => view.copy(item.text, event.currentTarget)));
    buttons.push(iconButton("edit", "Edit", idle(() => this.edit()), dim));
    const ask = (kind) => idle(() => view.ask(kind, { message: this.id }));
    if (item.role === "assistant") buttons.push(iconButton("regenerate", "Regenerate", ask("regenerate"), dim));
    if (item.cut) buttons.push(iconButton("continue", "Continue", ask("continue"), dim));
    buttons.push(iconButton("branch", "Fork here", () => this.fork()));
    return buttons;
  }

  /** Write the message anew, in its place. */
  edit() {
    const area = h("textarea", { "aria-label": "The message anew", rows: Math.min(14, this.item.text.split("\n").length + 1) });
    area.value = this.item.text;
    const words = this.item.role === "user" ? "Ask" : "Save";
    const save = async () => {
      if (area.value === this.item.text) close();
      else if (await this.view.ask("edit", { message: this.id, text: area.value })) close();
    };
    const close = this.openForm([area], words, save);
    area.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) save();
    });
    this.element.classList.add("editing");
    area.focus();
  }

  /** Make a branch that starts here, and a cell for it. */
  fork() {
    const input = h("input", { type: "text", "aria-label": "Name of the new branch", spellcheck: "false" });
    input.value = this.view.panel.view.suggested;
    const make = async () => {
      const made = await this.view.ask("fork", { message: this.id, name: input.value });
      if (!made) return;
      close();
      if (made.source && this.view.notebook) {
        this.view.insertCell(made.source);
        this.view.tell(`Branch ‘${made.branch}’ starts here; its cell is below.`);
      } else this.view.tell(`Branch ‘${made.branch}’ starts here; switch to it above.`);
    };
    const close = this.openForm([h("label", {}, "New branch ", input)], "Fork", make);
    input.addEventListener("keydown", (event) => {
      if (event.key === "Enter") make();
    });
    input.select();
  }

  openForm(fields, words, act) {
    const opener = document.activeElement;
    const close = () => {
      this.form.replaceChildren();
      this.element.classList.remove("editing");
      if (opener instanceof HTMLElement && opener.isConnected) opener.focus();
    };
    this.form.replaceChildren(
      ...fields,
      h("div", { class: "form-buttons" }, h("button", { type: "button", class: "primary", onclick: act }, words), h("button", { type: "button", onclick: close }, "Cancel")),
    );
    this.form.onkeydown = (event) => {
      if (event.key === "Escape") close();
    };
    return close;
  }
}

/** Where a person writes. */
class Composer {
  /**
   * @param {Panel} panel
   * @param {View} view
   */
  constructor(panel, view) {
    this.panel = panel;
    this.view = view;
    this.back = 0;
    this.area = h("textarea", {
      rows: 1,
      "aria-label": "Message",
      placeholder: "Ask the model …",
      oninput: () => this.typed(),
      onkeydown: (event) => this.key(event),
    });
    this.button = h("button", { type: "button", class: "send", onclick: () => (this.panel.view?.answering ? this.stop() : this.send()) });
    this.hint = h("p", { class: "hint" });
    this.element = h("div", { class: "composer" }, h("div", { class: "box" }, this.area, this.button), this.hint);
    this.area.value = panel.draft;
  }

  typed() {
    this.back = 0;
    this.panel.draft = this.area.value;
    this.fit();
    this.draw();
  }

  /** Show what the panel has as a draft, such as a question that was not kept. */
  restore() {
    this.area.value = this.panel.draft;
    this.fit();
    this.draw();
  }

  fit() {
    this.area.style.height = "auto";
    this.area.style.height = `${Math.min(220, this.area.scrollHeight + 2)}px`;
  }

  draw() {
    const { view, lost, draft } = this.panel;
    const answering = Boolean(view?.answering);
    const ready = view && !lost;
    this.area.disabled = Boolean(lost);
    const label = answering ? "Stop" : "Send";
    if (this.button.getAttribute("aria-label") !== label) {
      this.button.setAttribute("aria-label", label);
      this.button.title = label;
      this.button.replaceChildren(icon(answering ? "stop" : "send"));
      this.button.classList.toggle("stop", answering);
    }
    this.button.disabled = !ready || (!answering && !draft.trim());
    this.hint.textContent = lost
      ? "The kernel is gone."
      : !view
        ? "Connecting to the kernel …"
        : answering
          ? "The model is answering; write on, and send when it has ended."
          : "Enter sends, Shift+Enter breaks the line, ↑ brings back what you asked.";
  }

  /** @param {KeyboardEvent} event */
  key(event) {
    if (event.isComposing) return;
    if (event.key === "Enter" && !event.shiftKey && !event.ctrlKey && !event.altKey && !event.metaKey) {
      event.preventDefault();
      if (!this.button.disabled && !this.panel.view?.answering) this.send();
    } else if (event.key === "Enter" && event.shiftKey) {
      event.preventDefault(); // notebooks keep Shift+Enter from breaking a line
      document.execCommand("insertText", false, "\n");
    } else if (event.key === "ArrowUp" && this.atEdge("start")) this.recall(1, event);
    else if (event.key === "ArrowDown" && this.back && this.atEdge("end")) this.recall(-1, event);
  }

  /** Whether the cursor is on the first or the last line. */
  atEdge(which) {
    const { value, selectionStart, selectionEnd } = this.area;
    return which === "start" ? !value.slice(0, selectionStart).includes("\n") : !value.slice(selectionEnd).includes("\n");
  }

  /** Go back to what was asked before, or forth. */
  recall(step, event) {
    const asked = this.panel.asked();
    const back = Math.max(0, Math.min(asked.length, this.back + step));
    if (back === this.back) return;
    event.preventDefault();
    if (this.back === 0) this.unsent = this.area.value;
    this.back = back;
    this.area.value = back ? asked.at(-back).text : (this.unsent ?? "");
    this.panel.draft = this.area.value;
    this.fit();
    this.draw();
  }

  async send() {
    const text = this.area.value;
    if (!text.trim()) return;
    this.area.value = "";
    this.panel.draft = "";
    this.back = 0;
    this.fit();
    this.draw();
    this.view.toEnd();
    const sent = await this.view.ask("send", { text });
    if (!sent && !this.panel.draft) {
      this.panel.draft = text;
      this.restore();
    }
  }

  stop() {
    this.view.ask("stop");
  }
}

/** A part of the panel that a button opens. */
class Opening {
  /**
   * @param {Panel} panel
   * @param {View} view
   * @param {HTMLElement} button
   * @param {HTMLElement} element
   */
  constructor(panel, view, button, element) {
    this.panel = panel;
    this.view = view;
    this.button = button;
    this.element = element;
    element.hidden = true;
    button.setAttribute("aria-expanded", "false");
    button.addEventListener("click", () => this.open(!this.isOpen));
  }

  get isOpen() {
    return !this.element.hidden;
  }

  open(isOpen) {
    if (isOpen === this.isOpen) return;
    if (isOpen) this.view.onlyOpen(this);
    this.element.hidden = !isOpen;
    this.button.setAttribute("aria-expanded", String(isOpen));
    if (isOpen) {
      this.draw();
      this.focus();
    } else if (this.element.contains(document.activeElement)) this.button.focus();
  }

  focus() {}

  draw() {}
}

class BranchMenu extends Opening {
  constructor(panel, view) {
    const name = h("span", { class: "name" });
    const button = h("button", { type: "button", class: "branch", title: "Branches" }, icon("branch"), name);
    super(panel, view, button, h("div", { class: "popover", role: "group", "aria-label": "Branches" }));
    this.name = name;
  }

  focus() {
    this.element.querySelector("[aria-current]")?.focus();
  }

  draw() {
    const { view } = this.panel;
    this.name.textContent = view.branch;
    if (!this.isOpen) return;
    const state = JSON.stringify([view.branches, view.branch, view.n_lost]);
    if (state === this.state && this.element.firstChild) return;
    this.state = state;
    const held = this.element.contains(document.activeElement);
    this.element.replaceChildren(h("ul", {}, ...view.branches.map((branch) => this.row(branch))), this.pruning());
    if (held) this.focus();
  }

  row(branch) {
    const { view } = this.panel;
    const current = branch.name === view.branch;
    const { name } = branch;
    const act = (kind) => async () => {
      if (await this.view.ask(kind, { branch: name })) this.view.toEnd();
    };
    const rowElement = h(
      "li",
      {},
      h(
        "button",
        { type: "button", class: "choice", "aria-current": current ? "true" : null, onclick: async () => (await this.view.ask("switch", { branch: name })) && this.open(false) },
        h("span", { class: "name" }, name),
        h("span", { class: "about" }, [branch.busy ? "answering" : branch.said, branch.words].filter(Boolean).join(" · ")),
      ),
      iconButton("edit", `Rename ${name}`, () => this.rename(rowElement, name)),
      !current && iconButton("adopt", `Let ${view.branch} go on from where ${name} ends`, act("adopt")),
      !current && iconButton("remove", `Remove the name ${name}; its messages stay in the tree`, act("remove")),
    );
    return rowElement;
  }

  rename(row, name) {
    const input = h("input", { type: "text", "aria-label": `New name of ${name}`, spellcheck: "false" });
    input.value = name;
    const done = () => {
      this.state = "";
      this.draw();
    };
    const save = async () => {
      if ((await this.view.ask("rename", { branch: name, new: input.value })) && input.value === name) done();
    };
    input.addEventListener("keydown", (event) => {
      if (event.key === "Enter") save();
      if (event.key === "Escape") {
        event.stopPropagation();
        done();
      }
    });
    row.replaceChildren(input, h("button", { type: "button", class: "primary", onclick: save }, "Rename"));
    input.select();
  }

  pruning() {
    const { n_lost, lost } = this.panel.view;
    if (!n_lost) return h("p", { class: "about" }, "Every message is on a branch.");
    const place = h("div", { class: "pruning" });
    const back = () => place.replaceChildren(h("button", { type: "button", onclick: sure }, `Prune ${lost} that no branch leads to …`));
    const prune = async () => {
      const done = await this.view.ask("prune", { n: n_lost });
      if (done) this.view.tell(done.said);
      else back();
    };
    const sure = () => {
      place.replaceChildren(
        h("span", {}, `Remove ${lost} for good?`),
        h("button", { type: "button", class: "danger", onclick: prune }, "Remove"),
        h("button", { type: "button", onclick: back }, "Keep"),
      );
      place.lastChild.focus();
    };
    back();
    return place;
  }
}

class Drawer extends Opening {
  constructor(panel, view) {
    const button = iconButton("settings", "Settings", () => {});
    super(panel, view, button, h("div", { class: "drawer", role: "group", "aria-label": "Settings" }));
    this.fields = new Map();
    this.element.append(
      ...Object.entries(SETTINGS).map(([name, [label, about]]) => this.field(name, label, about, h("input", { type: "text", inputmode: "decimal", autocomplete: "off" }))),
      this.field("system", "System prompt", "", h("textarea", { rows: 2 })),
    );
  }

  focus() {
    this.element.querySelector("input")?.focus();
  }

  field(name, label, about, input) {
    const id = `llamanb-${Math.random().toString(36).slice(2)}`;
    const problem = h("span", { class: "problem", id: `${id}-problem`, role: "alert" });
    const hint = h("span", { class: "about", id: `${id}-about` }, about);
    input.id = id;
    input.setAttribute("aria-describedby", `${id}-about ${id}-problem`);
    let timer;
    const say = (text) => {
      problem.textContent = text;
      hint.hidden = Boolean(text);
      input.toggleAttribute("aria-invalid", Boolean(text));
      if (text) input.setAttribute("aria-invalid", "true");
    };
    const ask = async (kind) => {
      const value = input.value;
      try {
        await this.panel.request(kind, { name, value });
        if (input.value === value) say("");
      } catch (error) {
        if (input.value === value) say(error.message);
      }
    };
    input.addEventListener("input", () => {
      clearTimeout(timer);
      timer = setTimeout(() => ask("check"), CHECK_MILLISECONDS);
    });
    input.addEventListener("change", () => {
      clearTimeout(timer);
      ask("set");
    });
    if (input.tagName === "INPUT") {
      input.addEventListener("keydown", (event) => {
        if (event.key === "Enter") ask("set");
      });
    }
    this.fields.set(name, { input, hint, problem });
    return h("div", { class: `field field-${name}` }, h("label", { for: id }, label), input, hint, problem);
  }

  draw() {
    if (!this.isOpen) return;
    const { settings, system, system_fixed } = this.panel.view;
    for (const [name, { input, problem }] of this.fields) {
      const value = name === "system" ? system : settings[name];
      if (document.activeElement !== input && !problem.textContent) input.value = value;
    }
    const { input, hint } = this.fields.get("system");
    input.readOnly = system_fixed;
    hint.textContent = system_fixed ? "It stands while the branch has messages; a fork of an empty branch may have another." : "What the model is told before everything else.";
  }
}

class Tree extends Opening {
  constructor(panel, view) {
    super(panel, view, iconButton("tree", "Conversation tree", () => {}), h("div", { class: "tree", tabindex: -1 }));
    this.element.addEventListener("click", (event) => this.go(event.target.closest(".row")));
    this.element.addEventListener("keydown", (event) => this.key(event));
    this.resized = new ResizeObserver(() => this.isOpen && this.draw());
    this.resized.observe(this.element);
  }

  async draw() {
    if (!this.isOpen) return;
    const width = Math.max(TREE_PIXELS, Math.floor((this.element.clientWidth - 14) / 20) * 20);
    const state = JSON.stringify([this.panel.view.path, this.panel.view.branches, this.panel.view.n_lost, width]);
    if (state === this.state) return;
    this.state = state;
    const held = this.element.contains(document.activeElement) ? document.activeElement.dataset.message : null;
    const drawn = await this.panel.request("tree", { width }).catch((error) => this.view.tell(error.message, "error"));
    if (!drawn) return;
    this.element.innerHTML = drawn.svg;
    const first = this.rows().find((row) => row.dataset.message === held) ?? this.rows().findLast((row) => row.hasAttribute("aria-current")) ?? this.rows()[0];
    first?.setAttribute("tabindex", "0");
    if (held !== null || this.wanted) first?.focus();
    this.wanted = false;
  }

  focus() {
    this.state = "";
    this.wanted = true;
    this.draw();
  }

  rows() {
    return [...this.element.querySelectorAll(".row")];
  }

  /** @param {KeyboardEvent} event */
  key(event) {
    const rows = this.rows();
    const at = rows.indexOf(document.activeElement);
    const to = { ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: rows.length - 1 }[event.key];
    if (event.key === "Enter" || event.key === " ") this.go(rows[at]);
    else if (event.key === "Escape") this.open(false);
    else if (to === undefined) return;
    else if (rows[to]) {
      rows[at]?.setAttribute("tabindex", "-1");
      rows[to].setAttribute("tabindex", "0");
      rows[to].focus();
    }
    event.preventDefault();
    event.stopPropagation();
  }

  async go(row) {
    const id = row?.dataset.message;
    if (!id || !(await this.view.ask("go", { message: id }))) return;
    const message = this.view.messages.get(id)?.element;
    message?.scrollIntoView({ block: "nearest" });
    message?.classList.add("found");
    setTimeout(() => message?.classList.remove("found"), 1500);
  }
}

/**
 * Make the panel of a widget.
 * @param {any} model
 * @param {string} style
 */
export const connect = (model, style) => new Panel(model, style);
