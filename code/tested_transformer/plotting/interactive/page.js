(start) => (data) => {
  const root = document.currentScript.closest(".tt-look");
  if (!root || root.dataset.live) return;
  root.dataset.live = "yes";
  // JupyterLab has commands for the arrow keys, and leaves them to an element that says so.
  root.addEventListener("focusin", ({ target }) => { target.dataset.lmSuppressShortcuts = ""; });
  start(root, data);
}
