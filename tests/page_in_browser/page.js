// What tests/page_in_browser/checks.py asks of a page, as `look.NAME()`.
globalThis.look = (() => {
  const CONTROLS = "a[href], button, input, select, textarea, summary, [tabindex], [contenteditable], " +
    "[onclick], [role=button], [role=link], audio[controls], video[controls]";
  let controls = [], clicked = [];

  const name = (node) => {
    const text = (node.getAttribute("aria-label") || node.labels?.[0]?.textContent || node.textContent).trim();
    const kind = node.tagName.toLowerCase() + (node.getAttribute("class") ? `.${node.classList[0]}` : "");
    return `${kind} '${text.replace(/\s+/g, " ").slice(0, 40)}'`;
  };
  const isShown = (node) => node.checkVisibility({ visibilityProperty: true }) && node.getClientRects().length;

  const rgba = (text) => {
    const numbers = text.match(/[\d.]+/g).map(Number);
    if (text.startsWith("color(srgb")) return [...numbers.slice(0, 3).map((part) => part * 255), numbers[3] ?? 1];
    if (!text.startsWith("rgb")) throw new Error(`a colour that this program cannot read: ${text}`);
    return [...numbers.slice(0, 3), numbers[3] ?? 1];
  };
  const over = (front, back) => [0, 1, 2].map((at) => front[at] * front[3] + back[at] * (1 - front[3]));
  const luminance = (colour) => {
    const linear = colour.map((part) => part / 255).map((part) =>
      part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4);
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2];
  };
  const ratio = (first, second) => {
    const [low, high] = [luminance(first), luminance(second)].sort((a, b) => a - b);
    return (high + 0.05) / (low + 0.05);
  };
  const behind = (node) => node
    ? over(rgba(getComputedStyle(node).backgroundColor), behind(node.parentElement)) : [255, 255, 255];
  const opacity = (node) => node ? getComputedStyle(node).opacity * opacity(node.parentElement) : 1;

  document.addEventListener("click", (event) => {
    const link = event.target.closest("a[href]");
    if (link && !link.getAttribute("href").startsWith("#")) event.preventDefault();
    clicked.push(link || event.target);
  });

  return {
    // {kind of text: [its contrast, the text]}, of all text that is shown; the lowest of each kind.
    contrasts: () => {
      const found = {}, walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
      while (walker.nextNode()) {
        const node = walker.currentNode.parentElement;
        if (!walker.currentNode.data.trim() || !isShown(node)) continue;
        const style = getComputedStyle(node);
        const front = rgba(style.color), back = behind(node);
        front[3] *= opacity(node);
        const kind = node.tagName.toLowerCase() + [...node.classList].map((part) => `.${part}`).join("");
        const value = ratio(over(front, back), back);
        if (value < (found[kind]?.[0] ?? 22)) found[kind] = [value, walker.currentNode.data.trim().slice(0, 40)];
      }
      return found;
    },

    // What is wider than the page and not in a box of its own that scrolls.
    tooWide: () => {
      const page = document.documentElement, width = page.clientWidth;
      const isBoxed = (node) => node && node !== document.body && node !== page &&
        (/auto|scroll/.test(getComputedStyle(node).overflowX) || isBoxed(node.parentElement));
      const found = [];
      if (page.scrollWidth > width) found.push(`the page is ${page.scrollWidth} pixels wide`);
      for (const node of document.body.querySelectorAll("*")) {
        if (!isShown(node) || isBoxed(node.parentElement)) continue;
        const box = node.getBoundingClientRect();
        if (box.right > width + 1 || box.left < -1)
          found.push(`${name(node)} reaches from ${Math.round(box.left)} to ${Math.round(box.right)} pixels`);
      }
      return found;
    },

    open: () => document.querySelectorAll("details").forEach((node) => { node.open = true; }),
    // Names of what keys must reach, in order; kept for the functions below.
    controls: () => {
      controls = [...document.querySelectorAll(CONTROLS)].filter((node) =>
        !node.disabled && isShown(node));
      return controls.map(name);
    },
    focused: () => controls.indexOf(document.activeElement),
    focusedName: () => document.activeElement === document.body ? "nothing" : name(document.activeElement),
    blur: () => document.activeElement.blur(),
    focus: (at) => { clicked = []; controls[at].focus({ preventScroll: true }); },
    // The part of a control and of what is around it that is in view.
    box: (at) => {
      const box = controls[at].getBoundingClientRect();
      const x = Math.max(0, box.x - 6), y = Math.max(0, box.y - 6);
      return { x, y, width: Math.min(innerWidth, box.right + 6) - x, height: Math.min(innerHeight, box.bottom + 6) - y };
    },
    kind: (at) => {
      const node = controls[at], tag = node.tagName.toLowerCase();
      if (tag === "a") return node.getAttribute("href").startsWith("#") ? "anchor" : "link";
      return tag === "div" ? (node.scrollWidth > node.clientWidth ? "scroller" : "box") : tag;
    },
    isOpen: (at) => controls[at].parentElement.open,
    wasClicked: (at) => clicked.includes(controls[at]),
    scrolled: (at) => controls[at].scrollLeft,
    unscroll: (at) => { controls[at].scrollLeft = 0; },
    isAtTarget: (at) => {
      const hash = controls[at].getAttribute("href"), target = document.getElementById(hash.slice(1));
      const box = target?.getBoundingClientRect();
      return location.hash === hash && box && box.top < innerHeight && box.bottom > 0;
    },
  };
})();
