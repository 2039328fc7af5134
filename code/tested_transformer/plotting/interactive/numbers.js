(root, data) => {
  const find = (name) => root.querySelector(`.tt-${name}`);
  const field = find("number"), slider = find("slider"), picture = find("picture");
  const records = data.numbers.split("|");
  const last = records.length, hundredth = (level) => (level / 100).toFixed(2);
  let shown = null, hovered = null, focused = null;

  // One number as words and weights, of which the string holds a character each.
  function read(number) {
    const [german, english, weights, right] = records[number - 1].split(" ");
    const code = (text) => [...text].map((c) => data.levels.indexOf(c));
    const words = (text, names) => code(text).map((n) => names[n]);
    const source = words(german.slice(1), data.german), said = words(english, data.english);
    const zeros = (c) => "0".repeat(2 + data.runs.indexOf(c));
    const levels = code([...weights].map((c) => (data.runs.includes(c) ? zeros(c) : c)).join(""));
    const rows = said.map((_, i) => levels.slice(i * source.length, (i + 1) * source.length));
    const expected = right === undefined ? null : words(right, data.english);
    return { number, shown: german[0] === "+", source, said, rows, expected };
  }

  // "twenty attends to und (0.98), vier (0.02)": the largest weights first.
  function sentence(look, i, most = 4) {
    const order = look.rows[i].map((w, j) => [w, j]).sort((a, b) => b[0] - a[0] || a[1] - b[1]);
    const parts = order.filter(([w], k) => k === 0 || (w >= 2 && k < most));
    const named = parts.map(([w, j]) => `${look.source[j]} (${hundredth(w)})`);
    return `${look.said[i]} attends ${most === 1 ? "most " : ""}to ${named.join(", ")}`;
  }

  function written(look) {
    const word = look.source.filter((w) => w !== data.end).join("");
    return word.endsWith("ein") ? `${word}s` : word;
  }

  function drawing(look) {
    const { width, box, tall, pitch, top } = data.sizes;
    const middle = (row) => top + row * pitch + tall / 2;
    const height = top + pitch * Math.max(look.source.length, look.said.length);
    const sign = (word) => (word === data.end ? " tt-sign" : "");
    const part = (word, row, x, kind, inside) =>
      `<g class="tt-${kind}${sign(word)}"${kind === "said" ? ` data-row="${row}" tabindex="0" role="button" aria-label="${sentence(look, row)}"` : ""}>` +
      `<rect x="${x}" y="${middle(row) - tall / 2}" width="${box}" height="${tall}" rx="6"/>${inside}` +
      `<text x="${x + 12}" y="${middle(row) + 5}"${kind === "read" ? ' lang="de"' : ""}>${word}</text></g>`;
    const inside = (row) =>
      `<rect class="tt-shade" x="1" y="${middle(row) - tall / 2}" width="${box}" height="${tall}" rx="6" fill-opacity="0"/>` +
      `<text class="tt-weight" x="${box - 9}" y="${middle(row) + 5}"></text>`;
    const link = (weight, i, j) => {
      const [from, to, bend] = [width - box - 1, box + 1, (width - 2 * box) / 2];
      const path = `M${to} ${middle(j)}C${to + bend} ${middle(j)} ${from - bend} ${middle(i)} ${from} ${middle(i)}`;
      return `<path data-row="${i}" d="${path}" stroke="url(#${data.fade})" stroke-width="${(1 + weight * 0.08).toFixed(1)}" opacity="${(0.15 + weight * 0.0085).toFixed(2)}"/>`;
    };
    const links = look.rows.map((row, i) => row.map((w, j) => (w < 2 ? "" : link(w, i, j))).join(""));
    return `<svg class="tt-drawing" viewBox="0 0 ${width} ${height}" role="group" aria-label="${look.number}: which German tokens each English token attends to">` +
      `<defs><linearGradient id="${data.fade}" gradientUnits="userSpaceOnUse" x1="${box}" y1="0" x2="${width - box}" y2="0">` +
      `<stop offset="0" stop-color="var(--tt-key)"/><stop offset="1" stop-color="var(--tt-query)"/></linearGradient></defs>` +
      `<text class="tt-head" x="1" y="14">German, input</text><text class="tt-head" x="${width - box - 1}" y="14">English, output</text>` +
      `<g class="tt-links">${links.join("")}</g>` +
      look.source.map((word, j) => part(word, j, 1, "read", inside(j))).join("") +
      look.said.map((word, i) => part(word, i, width - box - 1, "said", "")).join("") + "</svg>";
  }

  function table(look) {
    const head = look.source.map((word) => `<th scope="col" lang="de">${word}</th>`).join("");
    const body = look.said.map((word, i) =>
      `<tr><th scope="row">${word}</th>${look.rows[i].map((w) => `<td>${hundredth(w)}</td>`).join("")}</tr>`);
    return `<table><thead><tr><td></td>${head}</tr></thead><tbody>${body.join("")}</tbody></table>`;
  }

  function verdict(look) {
    const said = look.said.filter((w) => w !== data.end).join(" ");
    return `Output: “${said}” ` + (look.expected ? `✗ wrong, it should be “${look.expected.join(" ")}”` : "✓ right");
  }

  // The attention weights of one English token, or of all.
  function highlight() {
    const chosen = hovered ?? focused, look = shown;
    for (const path of picture.querySelectorAll(".tt-links path"))
      path.classList.toggle("tt-faint", chosen !== null && Number(path.dataset.row) !== chosen);
    picture.querySelectorAll(".tt-said").forEach((g, i) => g.classList.toggle("tt-chosen", i === chosen));
    picture.querySelectorAll(".tt-read").forEach((g, j) => {
      const weight = chosen === null ? null : look.rows[chosen][j];
      g.querySelector(".tt-weight").textContent = weight === null ? "" : hundredth(weight);
      g.querySelector(".tt-shade").setAttribute("fill-opacity", (weight ?? 0) * 0.003);
    });
    const all = () => look.said.map((_, i) => sentence(look, i, 1)).join("; ");
    find("words").innerHTML = chosen !== null ? `${sentence(look, chosen)}.` :
      `<span class="tt-unseen">${all()}.</span><span aria-hidden="true">Choose an English token to see its attention weights.</span>`;
  }

  function draw(number) {
    shown = read(number);
    hovered = focused = null;
    picture.innerHTML = drawing(shown);
    find("headline").innerHTML = `<strong>${number}</strong><span lang="de">${written(shown)}</span>`;
    find("verdict").textContent = verdict(shown);
    find("training").textContent = `This number was ${shown.shown ? "in the training set" : "held out of training"}.`;
    find("scroll").innerHTML = table(shown);
    slider.value = number;
    highlight();
  }

  function complain(text) {
    field.setAttribute("aria-invalid", String(text !== ""));
    find("problem").textContent = text;
  }

  function choose(number) {
    field.value = number;
    complain("");
    draw(number);
  }

  function typed() {
    const text = field.value.trim(), still = `The picture still shows ${shown.number}.`;
    if (text === "") complain(`Type a number from 1 to ${last}. ${still}`);
    else if (!/^[+-]?\d+([.,]\d*)?$/.test(text)) complain(`“${text}” is not a number in digits: type one from 1 to ${last}. ${still}`);
    else if (!/^\+?\d+$/.test(text)) complain(`${text} is not a whole number from 1 to ${last}. ${still}`);
    else if (Number(text) < 1 || Number(text) > last) complain(`${text} is outside 1 to ${last}. ${still}`);
    else { complain(""); draw(Number(text)); }
  }

  field.addEventListener("input", typed);
  field.addEventListener("focus", () => field.select());
  field.addEventListener("keydown", (event) => {
    const step = { ArrowUp: 1, ArrowDown: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    choose(Math.min(last, Math.max(1, shown.number + step)));
  });
  slider.addEventListener("input", () => choose(Number(slider.value)));
  for (const button of root.querySelectorAll(".tt-examples button"))
    button.addEventListener("click", () => choose(Number(button.value) || 1 + Math.floor(Math.random() * last)));
  const row = (event) => event.target.closest?.(".tt-said")?.dataset.row;
  const at = (event) => (row(event) === undefined ? null : Number(row(event)));
  picture.addEventListener("pointerover", (event) => { if (event.pointerType === "mouse") { hovered = at(event); highlight(); } });
  picture.addEventListener("pointerleave", () => { hovered = null; highlight(); });
  picture.addEventListener("click", (event) => event.target.closest(".tt-said")?.focus());
  picture.addEventListener("focusin", (event) => { focused = at(event); highlight(); });
  picture.addEventListener("focusout", () => { focused = null; highlight(); });
  picture.addEventListener("keydown", (event) => { if (event.key === "Escape") event.target.blur(); });
  find("controls").hidden = false;
  draw(shown?.number ?? data.start);
}
