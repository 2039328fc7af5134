"""axe-core on a page in Chromium: the rules of WCAG 2.2 AA, and its own good practices."""

from pathlib import Path

import axe_playwright_python

AXE = Path(axe_playwright_python.__file__).with_name("axe.min.js").read_text(encoding="utf-8")
# It reads no MathML: a cell with a formula in it is not empty.
AXE += "; axe.configure({rules: [{id: 'empty-table-header', selector: 'th:not([role]):not(:has(math))'}]})"
TAGS = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]
# Rules of WCAG that axe runs only when asked by name.
MORE = ["label-content-name-mismatch", "p-as-heading", "td-has-header", "css-orientation-lock"]
COLORS = ["color-contrast", "link-in-text-block"]

# Text that looks the same has the same contrast, so of each look one is judged: a page of code has ten
# thousand words in five colors. A look is a color, a size and a weight on what is behind.
MARK_LOOKS = r"""() => {
    const seen = new Set(), behind = new Map();
    const under = element => {
        if (!element) return '';
        if (!behind.has(element)) {
            const {backgroundColor, backgroundImage, opacity, filter} = getComputedStyle(element);
            const own = [backgroundColor, backgroundImage, opacity, filter].join();
            const nothing = own === 'rgba(0, 0, 0, 0),none,1,none';
            behind.set(element, under(element.parentElement) + (nothing ? '' : '|' + own));
        }
        return behind.get(element);
    };
    for (const element of document.querySelectorAll('body *')) {
        element.removeAttribute('data-look');
        if (![...element.childNodes].some(node => node.nodeType === 3 && node.data.trim())) continue;
        if (!element.checkVisibility()) continue;
        const {color, fontSize, fontWeight} = getComputedStyle(element);
        const look = [color, fontSize, fontWeight, under(element)].join(';');
        if (!seen.has(look)) element.setAttribute('data-look', '');
        seen.add(look);
    }
    axe.configure({rules: [{id: 'color-contrast', selector: '[data-look]'}]});
    return seen.size;
}"""
# A colored word of code has a class and nothing more that axe could judge: those that stand for no look become
# plain text while it runs, which leaves it half of a chapter's elements and a quarter of a reference's.
FLATTEN = """() => [...document.querySelectorAll('pre, dt.sig')].map(code => {
    const flat = code.cloneNode(true);
    for (const word of [...flat.querySelectorAll('span')].reverse())
        if (!word.children.length && word.getAttributeNames().every(name => name === 'class'))
            word.replaceWith(...word.childNodes);
    flat.normalize();
    code.replaceWith(flat);
    return [code, flat];
})"""
RESTORE = "codes => { for (const [code, flat] of codes) flat.replaceWith(code); }"
OPEN_FOLDS = "for (const fold of document.querySelectorAll('details')) fold.open = true"


def violations(page, options: dict) -> list[str]:
    """What axe finds wrong: the rule, how often, and the first place."""
    found = page.evaluate(
        "options => axe.run(document, {...options, resultTypes: ['violations']})", options
    )
    return [
        f"{broken['id']}, {len(broken['nodes'])} times: {broken['nodes'][0]['target']} "
        f"{broken['nodes'][0]['failureSummary']} {broken['nodes'][0]['html'][:200]}"
        for broken in found["violations"]
    ]


def everything(page) -> list[str]:
    """All that axe can judge, the colors of each look once."""
    assert page.evaluate(MARK_LOOKS) >= 5
    codes = page.evaluate_handle(FLATTEN)
    rules = {name: {"enabled": True} for name in MORE}
    found = violations(page, {"runOnly": {"type": "tag", "values": TAGS}, "rules": rules})
    page.evaluate(RESTORE, codes)
    return found


def colors(page) -> list[str]:
    """Contrast, and links that only a color tells from the text around them."""
    assert page.evaluate(MARK_LOOKS) >= 5
    only = {"runOnly": {"type": "rule", "values": COLORS}, "preload": False}
    return violations(page, only)


def use_scheme(page, scheme: str) -> None:
    page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
    page.wait_for_function(f"document.documentElement.dataset.theme === '{scheme}'")
    page.evaluate("Promise.allSettled(document.getAnimations().map(one => one.finished))")
