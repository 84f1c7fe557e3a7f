// Colours that colour-blind readers can tell apart (after Okabe and Ito), then dashes.
const LIGHT = ["#0072b2", "#d55e00", "#009e73", "#b8528f", "#c98500", "#3f9fd8", "#30353b"];
const DARK = ["#5aaef0", "#ff8f4a", "#2fcf9e", "#ec9fce", "#ffc552", "#9ad8ff", "#e6e9ed"];
const DASHES = [[], [7, 3], [2, 2.5], [9, 3, 2, 3]];
const root = document.documentElement;
const wish = window.matchMedia("(prefers-color-scheme: dark)");
const state = {
  axis: "rounds", logX: false, logY: {}, zoom: {}, band: null, hidden: new Set(), theme: null,
  sort: null, picture: 0, differing: true, cost: "gradients",
};

function setTheme() {
  root.dataset.theme = state.theme || (wish.matches ? "dark" : "light");
}
const colours = () => (root.dataset.theme === "dark" ? DARK : LIGHT);
const colour = (i) => colours()[i % LIGHT.length];
const dash = (i) => DASHES[Math.floor(i / LIGHT.length) % DASHES.length];
const css = (name) => getComputedStyle(root).getPropertyValue(name).trim();

// Text enters the page through here alone: as text, never as markup.
function el(tag, props, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(props || {})) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value !== null && value !== undefined && value !== false) node.setAttribute(name, value);
  }
  node.append(...children.flat().filter((c) => c !== null && c !== undefined && c !== ""));
  return node;
}

function swatch(i) {
  const space = "http://www.w3.org/2000/svg";
  const svg = document.createElementNS(space, "svg");
  const line = document.createElementNS(space, "line");
  const where = { x1: 1, y1: 4, x2: 25, y2: 4, stroke: colour(i), "stroke-width": 2.5, "stroke-dasharray": dash(i).join(" ") };
  for (const [name, value] of Object.entries(where)) line.setAttribute(name, value);
  svg.setAttribute("class", "line");
  svg.setAttribute("viewBox", "0 0 26 8");
  svg.setAttribute("aria-hidden", "true");
  svg.append(line);
  return svg;
}

const isNumber = (v) => typeof v === "number" && Number.isFinite(v);

function number(v, digits = 4) {
  if (!isNumber(v)) return "–";
  const size = Math.abs(v);
  if (size !== 0 && (size < 1e-3 || size >= 1e6)) return v.toExponential(Math.min(2, digits - 1)).replace("e+", "e");
  return String(Number(v.toPrecision(digits)));
}

function scaled(v, units, digits = 3) {
  if (!isNumber(v)) return "–";
  let i = 0;
  while (Math.abs(v) >= 999.5 && i < units.length - 1) { v /= 1000; i += 1; }
  return `${Number(v.toPrecision(digits))}${units[i]}`;
}
const bytes = (v) => scaled(v, [" B", " kB", " MB", " GB", " TB", " PB"]);
const count = (v) => scaled(v, ["", "k", "M", "G", "T"]);
const percent = (v, digits = 2) => (isNumber(v) ? `${(100 * v).toFixed(digits)} %` : "–");
const seconds = (v) => (v >= 3600 ? `${number(v / 3600, 3)} h` : v >= 120 ? `${number(v / 60, 3)} min` : isNumber(v) ? `${number(v, 3)} s` : "–");
const isShare = (name) => name.endsWith("accuracy");
const value = (name) => (isShare(name) ? (v) => percent(v) : name.startsWith("counted_") ? bytes : (v) => number(v));

async function copy(text, button) {
  const said = button.textContent;
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    const area = el("textarea", { readonly: "" });
    area.value = text;
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  }
  button.textContent = "Copied";
  setTimeout(() => { button.textContent = said; }, 1200);
}
const copier = (text, name = "Copy") => el("button", { type: "button", onclick: (e) => copy(text(), e.currentTarget) }, name);

// A pane that scrolls says where there is more: at its right edge, at its lower edge.
function scroller(kind, inside) {
  const pane = el("div", { class: kind, tabindex: "0" }, inside), frame = el("div", { class: "pane" }, pane);
  const check = () => {
    frame.classList.toggle("more-right", pane.scrollLeft + pane.clientWidth < pane.scrollWidth - 2);
    frame.classList.toggle("more-below", pane.scrollTop + pane.clientHeight < pane.scrollHeight - 2);
  };
  pane.addEventListener("scroll", check);
  const watch = new ResizeObserver(check);
  [pane, ...pane.children].forEach((node) => watch.observe(node));
  return frame;
}
const card = (title, tools, ...inside) => el("div", { class: "card" }, el("div", { class: "head" }, el("h3", {}, title), ...tools), ...inside);
