// The search page: ranks the places of the book (PLACES, written by find_places.py) and lists the best.
const BookSearch = (() => {
  const KINDS = ["term", "function", "class", "method", "data", "pitfall", "mistake", "page", "section"];
  const LABELS = {
    term: "term", function: "function", class: "class", method: "method", data: "constant",
    pitfall: "pitfall", mistake: "pitfall", page: "page", section: "section",
  };
  // Of places that fit alike, what a reader more likely wants.
  const BONUS = { term: 30, function: 25, class: 25, pitfall: 22, mistake: 20, page: 18, section: 10, method: 5, data: 5 };
  const AT_ONCE = 20;
  const fold = (text) => text.normalize("NFKC").toLowerCase().replace(/[’‘]/g, "'").replace(/\s+/g, " ").trim();

  // Chinese has no spaces: a run of it is one word, which is looked for anywhere.
  const split = (text) => fold(text).match(/\p{Script=Han}+|(?:(?!\p{Script=Han})[\p{L}\p{N}_])+/gu) ?? [];
  const isHan = (word) => /\p{Script=Han}/u.test(word);
  // Pairs of characters, for a run that stands nowhere as a whole.
  const pairs = (word) => (isHan(word) && word.length > 2 ? [...word].slice(1).map((c, i) => [...word][i] + c) : [word]);
  const stem = (word) => (word.length > 4 && !isHan(word) ? word.replace(/(?:ings?|ed|ers?|es|s|e)$/, "") : word);
  const escaped = (text) => text.replace(/[.*+?^${}()|[\]\\]/g, "\\$&");
  const pattern = (word, flags = "u") => isHan(word)
    ? new RegExp(escaped(word), flags)
    : new RegExp(`(?<![\\p{L}\\p{N}])${escaped(word)}${[...word].length === 1 ? "(?![\\p{L}\\p{N}])" : ""}`, flags);

  const places = PLACES.flatMap(([url, rows]) => rows.map(([kind, anchor, names, text]) => ({
    kind: KINDS[kind], url: url + (anchor && "#" + anchor), page: rows[0][2][0], name: names[0],
    chinese: names.find(isHan) ?? "", text: text ?? "", names: names.map(fold), words: fold(text ?? ""), code: "",
  })));

  // The running text is three quarters of the list, and comes when the first question does.
  let text;
  const addText = () => (text ??= new Promise((resolve) => {
    const script = document.createElement("script");
    script.src = "search_text.js";
    script.onload = () => {
      const running = places.filter((place) => place.kind === "page" || place.kind === "section");
      running.forEach((place, i) => {
        [place.text, place.code] = PLACES_TEXT[i];
        [place.words, place.code] = [fold(place.text), fold(place.code)];
      });
      resolve();
    };
    script.onerror = resolve; // without it, the names are found all the same
    document.head.append(script);
  }));

  // How well a name fits what was typed: the same, its beginning, a part of it, or all of its words.
  function fitName(name, phrase, tests) {
    if (name === phrase) return 1000;
    if (phrase.length < 2) return 0;
    if (name.startsWith(phrase)) return 700 - Math.min(name.length - phrase.length, 60);
    if (tests.phrase.test(name)) return 600 - Math.min(name.length - phrase.length, 60);
    if (tests.words.every((test) => test.test(name))) return 500 - Math.min(name.length - phrase.length, 60);
    if (tests.stems.every((test) => test.test(name))) return 400 - Math.min(name.length - phrase.length, 60);
    return 0;
  }

  function fit(place, phrase, tests, least) {
    const best = Math.max(...place.names.map((name) => fitName(name, phrase, tests)));
    const bonus = BONUS[place.kind] + (tests.code && /function|class|method|data/.test(place.kind) ? 40 : 0);
    if (best) return best + bonus;
    const everywhere = [...place.names, place.words, place.code].join(" \n ");
    const inNames = tests.stems.filter((test) => place.names.some((name) => test.test(name))).length;
    const inWords = tests.words.filter((test) => test.test(place.words)).length;
    const there = tests.stems.filter((test) => test.test(everywhere)).length;
    if (!there || there < least) return 0;
    const said = tests.phrase.test(place.words) ? 120 : 0;
    const among = place.url.startsWith("book/notation") ? 60 : 0; // a symbol is explained there
    return 40 * there + 40 * inNames + 20 * inWords + said + among + bonus;
  }

  function rank(query, words, least) {
    const phrase = fold(query);
    const tests = {
      phrase: pattern(phrase), words: words.map((word) => pattern(word)), stems: words.map((word) => pattern(stem(word))),
      code: /[_.(]|[a-z][A-Z]/.test(query.trim()),
    };
    return places
      .map((place) => ({ place, score: fit(place, phrase, tests, least) }))
      .filter((hit) => hit.score > 0)
      .sort((a, b) => b.score - a.score) // stable: the order of the book
      .map((hit) => hit.place);
  }

  // How many letters must change; more than `most` counts as that.
  function distance(a, b, most) {
    if (Math.abs(a.length - b.length) > most) return most + 1;
    let row = Array.from({ length: b.length + 1 }, (_, i) => i), before = row;
    for (let i = 1; i <= a.length; i++) {
      const next = [i];
      for (let j = 1; j <= b.length; j++) {
        next[j] = Math.min(next[j - 1] + 1, row[j] + 1, row[j - 1] + (a[i - 1] !== b[j - 1]));
        if (i > 1 && j > 1 && a[i - 1] === b[j - 2] && a[i - 2] === b[j - 1]) next[j] = Math.min(next[j], before[j - 2] + 1);
      }
      [before, row] = [row, next];
    }
    return row[b.length];
  }

  let known;
  function mend(word) {
    if (!known) {
      known = new Map(); // the words of all names, and how often they come
      for (const place of places)
        for (const part of new Set(place.names.flatMap((name) => [...split(name), ...split(name).flatMap((w) => w.split("_"))])))
          known.set(part, (known.get(part) ?? 0) + 1);
    }
    const most = word.length > 5 ? 2 : 1;
    if (isHan(word) || word.length < 4 || [...known.keys()].some((part) => part.startsWith(word))) return word;
    const near = [...known].map(([part, often]) => [distance(word, part, most), -often, part]).filter(([far]) => far <= most);
    return near.sort((a, b) => a[0] - b[0] || a[1] - b[1])[0]?.[2] ?? word;
  }

  // What fits a query: all of its words; else the same rightly spelled; else most of its words.
  function find(query) {
    const words = split(query);
    if (!words.length) return { found: [], words };
    let found = rank(query, words, words.length);
    if (found.length) return { found, words };
    const mended = words.map(mend).join(" ");
    if (mended !== words.join(" ")) {
      found = rank(mended, split(mended), words.length);
      if (found.length) return { found, words: split(mended), mended };
    }
    const parts = words.flatMap(pairs);
    if (parts.length > 1) found = rank(query, parts, Math.ceil((parts.length + 1) / 2));
    return { found, words: parts, some: true };
  }

  // ---------------------------------------------------------------------------------- the page

  // The words around the first place where one of those looked for stands, in pieces: every second is a hit.
  function excerpt(text, words) {
    const any = new RegExp(words.map((word) => pattern(stem(word)).source + (isHan(word) ? "" : "[\\p{L}\\p{N}]*")).join("|"), "giu");
    const first = Math.max(text.search(any), 0);
    let start = first > 140 ? text.indexOf(" ", first - 80) + 1 : 0;
    if (start > first) start = first;
    const piece = (start ? "… " : "") + text.slice(start, start + 220).replace(/\s\S*$/, start + 220 < text.length ? " …" : "$&");
    const pieces = [];
    let last = 0;
    for (const hit of piece.matchAll(any)) {
      pieces.push(piece.slice(last, hit.index), hit[0]);
      last = hit.index + hit[0].length;
    }
    return [...pieces, piece.slice(last)];
  }

  // Where a place stands: its module, or its page.
  const around = (place) => /function|class|method|data/.test(place.kind)
    ? place.url.split("#")[1].split(".").slice(0, -place.name.split(".").length).join(".")
    : { term: "glossary", mistake: "gallery" }[place.kind] ?? place.page;

  function item(place, words) {
    const made = document.getElementById("search-result").content.cloneNode(true);
    const link = made.querySelector("a"), shown = made.querySelector(".found-words");
    link.href = place.url;
    link.textContent = place.kind === "term" || place.kind === "page" ? `${place.name} ${place.chinese}`.trim() : place.name;
    made.querySelector(".found-kind").textContent = place.kind === "page" ? "page" : `${LABELS[place.kind]} · ${around(place)}`;
    excerpt(place.text, words).forEach((piece, i) =>
      shown.append(i % 2 ? Object.assign(document.createElement("mark"), { textContent: piece }) : piece));
    return made;
  }

  function list(found, words) {
    const results = document.getElementById("search-results"), more = document.getElementById("search-more");
    results.replaceChildren(...found.slice(0, AT_ONCE).map((place) => item(place, words)));
    more.hidden = found.length <= AT_ONCE;
    more.textContent = `Show all ${found.length}`;
    more.onclick = () => {
      results.append(...found.slice(AT_ONCE).map((place) => item(place, words)));
      more.hidden = true;
      results.children[AT_ONCE].querySelector("a").focus();
    };
  }

  function say(query, { found, words, mended, some }) {
    const counted = found.length === 1 ? "1 place" : `${found.length} places`;
    if (!query.trim()) return "";
    if (!words.length) return "Type a word, a name or a term.";
    if (!found.length) return `Nothing in the book fits “${query}”.`;
    if (mended) return `Nothing fits “${query}”. ${counted} for “${mended}”:`;
    if (some) return `No place has all of “${query}”. ${counted} with most of it:`;
    return `${counted} for “${query}”:`;
  }

  async function show(query) {
    const help = document.getElementById("search-help"), status = document.getElementById("search-status");
    if (split(query).length) {
      const named = rank(query, split(query), split(query).length);
      list(named, split(query)); // what has the name, before the text is there
      await addText();
      if (field.value !== query) return; // the reader types on
    }
    const answer = find(query);
    list(answer.found, answer.words);
    status.textContent = say(query, answer);
    help.hidden = answer.found.length > 0;
  }

  const field = document.querySelector(".book-search input[name=q]");

  function begin() {
    field.value = new URLSearchParams(location.search).get("q") ?? "";
    show(field.value);
    field.focus();
    let waiting;
    field.addEventListener("input", () => {
      clearTimeout(waiting);
      waiting = setTimeout(() => {
        history.replaceState(null, "", field.value ? `?q=${encodeURIComponent(field.value)}` : location.pathname);
        show(field.value);
      }, 200);
    });
  }

  begin();
  return { find, split, places, excerpt, distance, addText };
})();
