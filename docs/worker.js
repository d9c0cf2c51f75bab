// Browsers start no workers for pages that lie on a disk: there the search runs in a hidden frame instead.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(address) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.documentElement.append(frame);
      const inside = frame.contentWindow;
      inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      // Scripts of its own are loaded one after the other; none is ready before the one before it.
      inside.importScripts = (...scripts) =>
        scripts.reduce((before, each) => before.then(() => this.load(frame, new URL(each, address))), Promise.resolve());
      this.ready = this.load(frame, address);
      this.inside = inside;
    }
    load(frame, address) {
      return new Promise((done) => {
        const script = frame.contentDocument.createElement("script");
        script.src = address;
        script.onload = done;
        frame.contentDocument.documentElement.append(script);
      });
    }
    postMessage(data) {
      this.ready.then(() => this.inside.dispatchEvent(new MessageEvent("message", { data })));
    }
    terminate() {}
  };
}
