"use strict";
// Shows the live parts of the page anew when the server says that something has changed. Pages work without it.
(() => {
  const parts = () => document.querySelectorAll("[data-live]");
  if (parts().length === 0 || !window.EventSource) {
    return;
  }
  const lost = document.getElementById("lost");
  // The server ends each event's answer, so an error alone says nothing: only silence does.
  let silence;
  const heard = () => {
    clearTimeout(silence);
    lost.hidden = true;
    silence = setTimeout(() => { lost.hidden = false; }, 30000);
  };
  const show = async () => {
    const answer = await fetch(location.href);
    if (answer.redirected) {
      // The session has ended.
      location.reload();
      return;
    }
    if (!answer.ok) {
      return;
    }
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    for (const part of parts()) {
      const next = page.getElementById(part.id);
      // What somebody is using stays as it is.
      if (next && !part.contains(document.activeElement)) {
        part.replaceWith(document.adoptNode(next));
      }
    }
  };
  const events = new EventSource(new URL("../events", document.currentScript.src));
  let shown = Promise.resolve();
  events.onmessage = () => {
    heard();
    shown = shown.then(show).catch(() => {});
  };
  heard();
})();
