// The sections that wait (fast.css) are laid out one by one, while the browser has nothing else to do.
addEventListener("load", () => {
  const idle = window.requestIdleCallback ?? ((next) => setTimeout(next, 50));
  const waiting = [...document.querySelectorAll(".bd-article > section > section")];
  const next = () => {
    const section = waiting.shift();
    if (!section) return;
    section.style.contentVisibility = "visible";
    idle(next);
  };
  idle(next);
});
