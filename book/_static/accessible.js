// A formula is a stop for the tab key only where it is wider than its place, so that the keys can move it.
const fits = new ResizeObserver((changes) => {
  for (const { target } of changes) target.tabIndex = target.scrollWidth > target.clientWidth ? 0 : -1;
});
for (const formula of document.querySelectorAll(".formula")) fits.observe(formula);

// What goes on to the right, unseen, has a shadow at that edge.
const wide = document.querySelectorAll(".bd-article :is(pre, .pst-scrollable-table-container, .formula, .tt-scroll)");
const mark = (place) => place.classList.toggle("goes-on", place.scrollWidth - place.clientWidth - place.scrollLeft > 2);
const widths = new ResizeObserver((changes) => { for (const { target } of changes) mark(target); });
for (const place of wide) {
  widths.observe(place);
  place.addEventListener("scroll", () => mark(place), { passive: true });
}

// A place that moved from a chapter to another page is found there, by its old address too.
const follow = () => {
  const { moved } = document.getElementById(decodeURIComponent(location.hash.slice(1)))?.dataset ?? {};
  if (moved) location.replace(moved);
};
follow();
addEventListener("hashchange", follow);

// The button that changes the colors says which are chosen.
const colors = document.querySelector(".theme-switch-button");
if (colors) {
  const say = () => colors.setAttribute("aria-label", `Color mode: ${document.documentElement.dataset.mode}`);
  new MutationObserver(say).observe(document.documentElement, { attributeFilter: ["data-mode"] });
  say();
}

// The theme takes the focus from these buttons when they are used. With a mouse that hides their labels; with
// keys the reader would be sent back to the beginning of the page.
for (const button of document.querySelectorAll(".theme-switch-button, .search-button, .primary-toggle, .secondary-toggle"))
  button.blur = () => button.matches(":focus-visible") || HTMLElement.prototype.blur.call(button);

// A drawer gives way to the place that was chosen in it.
for (const drawer of document.querySelectorAll("dialog[id$=sidebar-modal]"))
  drawer.addEventListener("click", (event) => { if (event.target.closest('a[href^="#"]')) drawer.close(); });
