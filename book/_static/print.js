// Paper is light: while the page is printed, so is its theme.
(() => {
  const root = document.documentElement;
  let before = null;
  const lighten = (printing) => {
    if (printing && before === null) {
      before = root.dataset.theme;
      root.dataset.theme = "light";
    } else if (!printing && before !== null) {
      root.dataset.theme = before;
      before = null;
    }
  };
  addEventListener("beforeprint", () => lighten(true));
  addEventListener("afterprint", () => lighten(false));
  matchMedia("print").addEventListener("change", (change) => lighten(change.matches));
})();
