// A formula is a stop for the tab key only where it is wider than its place, so that the keys can move it.
const fits = new ResizeObserver((changes) => {
  for (const { target } of changes) target.tabIndex = target.scrollWidth > target.clientWidth ? 0 : -1;
});
for (const formula of document.querySelectorAll(".formula")) fits.observe(formula);

// The button that changes the colors says which are chosen.
const colors = document.querySelector(".theme-switch-button");
if (colors) {
  const say = () => colors.setAttribute("aria-label", `Color mode: ${document.documentElement.dataset.mode}`);
  new MutationObserver(say).observe(document.documentElement, { attributeFilter: ["data-mode"] });
  say();
}
