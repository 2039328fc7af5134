// The first page. Its picture answers: the token under the mouse, tapped or focused shows its attention weights.
(() => {
  const root = document.querySelector(".front-look");
  if (!root) return;
  const drawing = root.querySelector("svg"), says = root.querySelector(".front-says");
  const words = [...root.querySelectorAll(".front-word")], links = [...root.querySelectorAll(".front-link")];
  let pointed = null, focused = null;

  // The weights between a word and those of the other row, by their places.
  function weights(word) {
    const { row, place } = word.dataset, other = row === "read" ? "said" : "read";
    const mine = links.filter((link) => link.dataset[row] === place);
    return { other, found: new Map(mine.map((link) => [link.dataset[other], link.dataset.weight])) };
  }

  function show() {
    const chosen = pointed ?? focused, { other, found } = chosen ? weights(chosen) : {};
    root.classList.toggle("front-asked", chosen !== null);
    for (const link of links)
      link.classList.toggle("front-chosen", chosen !== null && link.dataset[chosen.dataset.row] === chosen.dataset.place);
    for (const word of words) {
      const weight = word.dataset.row === other ? found.get(word.dataset.place) ?? "0.00" : "";
      word.classList.toggle("front-chosen", word === chosen);
      word.style.setProperty("--weight", Number(weight));
      word.querySelector(".front-weight").textContent = weight;
    }
    says.textContent = chosen?.dataset.says ?? says.dataset.hint;
  }

  // Anywhere in the drawing: the nearest word of the nearer row.
  function nearest(event) {
    const away = (word) => {
      const box = word.querySelector("rect").getBoundingClientRect();
      const x = event.clientX - box.x - box.width / 2, y = event.clientY - box.y - box.height / 2;
      return Math.abs(x) + 100 * Math.abs(y);
    };
    return words.reduce((best, word) => (away(word) < away(best) ? word : best));
  }

  const point = (word) => { if (word !== pointed) { pointed = word; show(); } };
  drawing.setAttribute("role", "group");
  for (const word of words) {
    word.setAttribute("tabindex", "0");
    word.setAttribute("role", "button");
    word.setAttribute("aria-label", word.dataset.says);
  }
  drawing.addEventListener("pointermove", (event) => { if (event.pointerType === "mouse") point(nearest(event)); });
  drawing.addEventListener("pointerleave", () => point(null));
  drawing.addEventListener("click", (event) => nearest(event).focus());
  drawing.addEventListener("focusin", (event) => { [pointed, focused] = [null, event.target.closest(".front-word")]; show(); });
  drawing.addEventListener("focusout", () => { focused = null; show(); });
  drawing.addEventListener("keydown", (event) => { if (event.key === "Escape") event.target.blur(); });
  show();
})();

// The map of the chapters: pointing at one shows all that leads to it.
for (const map of document.querySelectorAll(".map")) {
  const nodes = new Map([...map.querySelectorAll(".map-node")].map((node) => [node.dataset.chapter, node]));

  function before(number, found = new Set()) {
    found.add(number);
    for (const need of nodes.get(number).dataset.needs.split(" ").filter(Boolean)) before(need, found);
    return found;
  }

  function light(event) {
    const number = event?.target.closest(".map-node")?.dataset.chapter, way = number ? before(number) : new Set();
    map.classList.toggle("map-asked", way.size > 0);
    for (const [name, node] of nodes) node.classList.toggle("map-way", way.has(name));
    for (const { classList, dataset } of map.querySelectorAll(".map-edge")) classList.toggle("map-way", way.has(dataset.to));
  }

  for (const kind of ["pointerover", "focusin"]) map.addEventListener(kind, light);
  for (const kind of ["pointerleave", "focusout"]) map.addEventListener(kind, () => light());
}
