/**
 * Loads the chat panel. The script that draws it comes from the kernel as a message, so that a notebook that is saved
 * with the state of its widgets holds these few lines and nothing that was said.
 */

const HELLO_MILLISECONDS = [0, 50, 150, 300, 600, 1200, 3000, 6000, 15000];
const PATIENCE_MILLISECONDS = 8000;

let loaded;

export default {
  initialize({ model }) {
    loaded = new Promise((resolve) => {
      let done = false;
      model.on("msg:custom", async (message) => {
        if (message.kind !== "script" || done) return;
        done = true;
        const url = URL.createObjectURL(new Blob([message.module], { type: "text/javascript" }));
        const { connect } = await import(url);
        URL.revokeObjectURL(url);
        resolve(connect(model, message.style));
      });
      // Again and again: what a widget says early on waits, in JupyterLab, until the kernel has nothing else to do.
      for (const milliseconds of HELLO_MILLISECONDS) {
        setTimeout(() => done || model.send({ kind: "hello", id: 0 }), milliseconds);
      }
    });
  },

  async render({ model, el }) {
    const waiting = document.createElement("p");
    waiting.textContent = "The chat panel waits for its kernel …";
    el.append(waiting);
    const impatience = setTimeout(() => {
      waiting.textContent = "The chat panel needs its kernel: run this cell again. What was said is kept in the notebook.";
    }, PATIENCE_MILLISECONDS);
    const panel = await loaded;
    clearTimeout(impatience);
    waiting.remove();
    return panel.show(el, model);
  },
};
