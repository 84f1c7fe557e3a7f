// Pages that are opened from a disk may start no workers: the search then runs in a hidden frame.
// After iframe-worker by Martin Donath (MIT licence), which the theme would load from elsewhere.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      document.body.append(this.frame);
      const inside = this.frame.contentWindow;
      const load = (...urls) => urls.reduce((before, src) => before.then(() => new Promise((resolve) => {
        const script = inside.document.createElement("script");
        Object.assign(script, { src, onload: resolve });
        inside.document.body.append(script);
      })), Promise.resolve());
      inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      inside.importScripts = load;
      this.ready = load(`${url}`);
    }

    postMessage(data) {
      this.ready.then(() => this.frame.contentWindow.dispatchEvent(new MessageEvent("message", { data: structuredClone(data) })));
    }

    terminate() { this.frame.remove(); }
  };
}
