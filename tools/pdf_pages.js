// Pages of the built site become one document for paper: their articles one after another, each with ids
// of its own. tools/pdf.py evaluates this in an empty page at the root of the site, with the names of the
// pages (names), whether they are the whole book, the site's address or "" (site), and the names of the
// pages of the whole book (book).
async ({ names, whole, site, book }) => {
  const home = new URL(".", location.href).href;
  const place = document.querySelector(".bd-article-container");
  const NAMING = ["id", "for", "headers", "aria-labelledby", "aria-describedby", "aria-controls", "aria-owns"];

  const markOf = (name) => name.match(/([^/]+)\.html$/)[1];
  const named = (mark, id) => (id ? `${mark}--${id}` : mark);
  const quoted = (text) => `"${text.replace(/[\\"]/g, "\\$&")}"`; // for a style sheet

  function text(element) {
    const copy = element.cloneNode(true);
    for (const source of copy.querySelectorAll("annotation")) source.remove();
    return copy.textContent.trim().replace(/\s+/g, " ");
  }

  // A link leads to its place in this document; else to the site, if that has an address; else into the
  // file of the whole book, for which tools/pdf.py knows the scheme book:. What is left is text.
  function link(anchor, url) {
    if (anchor.hasAttribute("download")) return; // not on paper, see print.css
    const target = new URL(anchor.getAttribute("href"), url);
    if (!target.href.startsWith(home)) return; // another host
    const name = decodeURI(target.pathname.slice(new URL(home).pathname.length));
    const goal = book.includes(name) && named(markOf(name), decodeURIComponent(target.hash.slice(1)));
    if (names.includes(name)) anchor.setAttribute("href", `#${goal}`);
    else if (site) anchor.setAttribute("href", new URL(name + target.hash, site));
    else if (goal) anchor.setAttribute("href", `book:${encodeURIComponent(goal)}`);
    else anchor.replaceWith(...anchor.childNodes);
  }

  function adopt(article, url, mark) {
    for (const gone of article.querySelectorAll("script, noscript, .headerlink")) gone.remove();
    const ids = new Set([...article.querySelectorAll("[id]")].map((element) => element.id));
    const own = (text, name) => text.replace(/#([\w.:-]+)/g, (all, id) => (ids.has(id) ? `#${name(named(mark, id))}` : all));
    for (const element of article.querySelectorAll("*")) {
      for (const { name, value } of [...element.attributes]) {
        if (NAMING.includes(name)) {
          const mine = value.split(/\s+/).map((id) => (name === "id" || ids.has(id) ? named(mark, id) : id));
          element.setAttribute(name, mine.join(" "));
        } else if (value.includes("url(#")) element.setAttribute(name, own(value, String));
      }
      const tag = element.localName;
      if (tag === "a" && element.hasAttribute("href")) link(element, url);
      else if (tag === "use") element.setAttribute("href", own(element.getAttribute("href"), String));
      else if (tag === "style") element.textContent = own(element.textContent, CSS.escape);
      else if (tag === "figure") element.setAttribute("role", "group"); // the picture in it has the words
      else if (tag === "img") {
        element.setAttribute("src", new URL(element.getAttribute("src"), url).href);
        element.loading = "eager";
      } else if (/^h[1-6]$/.test(tag) && whole) element.setAttribute("aria-level", Number(tag[1]) + 1);
    }
    // A formula is read aloud, and copied, as its LaTeX; tools/pdf.py makes formulas of these pictures.
    for (const formula of article.querySelectorAll(".math:has(annotation)")) {
      formula.setAttribute("role", "img");
      formula.setAttribute("aria-label", `$${formula.querySelector("annotation").textContent.trim()}$`);
    }
    article.id = mark;
    return article;
  }

  const chapters = [], articles = [];
  let sheets = "";
  for (const name of names) {
    const url = home + name, mark = markOf(name), answer = await fetch(url);
    if (!answer.ok) throw new Error(`${name}: ${answer.status}`);
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    const article = adopt(page.querySelector("article.bd-article"), url, mark);
    const title = text(article.querySelector("h1")), paper = `paper-${chapters.length}`;
    // Each sheet says to which chapter it belongs.
    sheets += `@page ${paper} { @top-center { content: ${quoted(title)} } }\n`;
    article.style.page = paper;
    const sections = [...article.querySelectorAll("section > section > h2")].map((heading) => (
      { title: text(heading), mark: heading.parentElement.id }));
    const about = page.querySelector("meta[name=description]")?.content ?? "";
    articles.push(article);
    chapters.push({ name, mark, title, about, sections });
  }
  // All at once: the browser sets out the whole document anew after every part that comes while it waits.
  document.head.appendChild(document.createElement("style")).textContent = sheets;
  place.append(...articles);
  return chapters;
}
