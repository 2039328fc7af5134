(root, data) => {
  root.classList.add("tt-live");
  const find = (query) => root.querySelector(query), all = (query) => [...root.querySelectorAll(query)];
  const controls = all("[data-axis]"), slots = all("[data-slot]"), rows = all("[data-says]");
  const drawing = find(".tt-drawing"), picture = find(".tt-picture"); // an svg that listens for focus takes it
  const numbers = (text) => text.match(/../g).map((two) => 64 * data.digits.indexOf(two[0]) + data.digits.indexOf(two[1]));
  const groups = data.groups.map((group) => ({ ...group, which: numbers(group.which), fillings: numbers(group.fillings) }));
  let shown = [], hovered = null, focused = null;

  const chosen = (control) => (control.type === "checkbox" ? Number(control.checked) : Number(control.value));

  // The string of every slot for what is chosen.
  function look(choice) {
    const found = [];
    for (const { axes, slots, fillings, which } of groups) {
      const place = axes.reduce((place, axis) => place * data.labels[axis].length + choice[axis], 0);
      slots.forEach((slot, i) => { found[slot] = data.texts[fillings[which[place] * slots.length + i]]; });
    }
    return found;
  }

  function draw() {
    const choice = controls.map(chosen);
    shown = look(choice);
    for (const place of slots) {
      const text = shown[place.dataset.slot], { to, by } = place.dataset;
      if (!to && place.textContent !== text) place.textContent = text;
      if (to) place.setAttribute(to, by ? ((Number(text) || 0) * by).toFixed(2) : text);
    }
    controls.forEach((control, axis) => {
      const label = data.labels[axis][choice[axis]], value = control.parentElement.querySelector("b");
      if (value) { value.textContent = label; control.setAttribute("aria-valuetext", label); }
      if (control.dataset.needs) control.disabled = !choice[control.dataset.needs];
    });
    find(".tt-setting").textContent = controls.map((control, axis) => `${data.names[axis]}: ${data.labels[axis][choice[axis]]}`).join("; ");
    for (const row of rows) row.setAttribute("aria-label", shown[row.dataset.says]);
    highlight();
  }

  // The words are those of one row, or of the whole picture.
  function highlight() {
    const row = hovered ?? focused;
    for (const each of rows) each.classList.toggle("tt-chosen", each === row);
    find(".tt-one").textContent = row ? shown[row.dataset.says] : "";
    find(".tt-all").hidden = row !== null;
    drawing.setAttribute("aria-label", `${data.title}. ${find(".tt-all").textContent}`);
  }

  const row = (event) => event.target.closest?.("[data-says]") ?? null;
  picture.addEventListener("pointerover", (event) => { if (event.pointerType === "mouse") { hovered = row(event); highlight(); } });
  picture.addEventListener("pointerleave", () => { hovered = null; highlight(); });
  picture.addEventListener("click", (event) => row(event)?.focus());
  picture.addEventListener("focusin", (event) => { focused = row(event); hovered = null; highlight(); });
  picture.addEventListener("focusout", () => { focused = null; highlight(); });
  picture.addEventListener("keydown", (event) => { if (event.key === "Escape") { hovered = null; event.target.blur(); } });
  for (const control of controls) control.addEventListener("input", draw);
  for (const each of rows) { each.setAttribute("tabindex", "0"); each.setAttribute("role", "img"); }
  if (rows.length) drawing.setAttribute("role", "group");
  find(".tt-controls").hidden = false;
  draw();
}
