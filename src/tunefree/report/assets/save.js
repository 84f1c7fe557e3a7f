// Figures and tables as files. An SVG is what Chart.js draws, recorded call by call; a PNG is that SVG, drawn.
const round2 = (v) => Math.round(100 * v) / 100;
const markup = (text) => String(text).replace(/[&<>"]/g, (c) => ({ "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;" })[c]);

// Stands in for Path2D and for the current path of a context; `at` maps points to those of the figure.
class Track {
  constructor(at = (x, y) => [x, y], unit = () => 1) { this.at = at; this.unit = unit; this.parts = []; }
  put(letter, ...xy) { for (let i = 0; i < xy.length; i += 2) letter += `${i ? " " : ""}${this.at(xy[i], xy[i + 1]).map(round2).join(" ")}`; this.parts.push(letter); }
  moveTo(x, y) { this.put("M", x, y); }
  lineTo(x, y) { this.put(this.parts.length ? "L" : "M", x, y); }
  quadraticCurveTo(...xy) { this.put("Q", ...xy); }
  bezierCurveTo(...xy) { this.put("C", ...xy); }
  closePath() { if (this.parts.length) this.parts.push("Z"); }
  rect(x, y, w, h) { this.moveTo(x, y); this.lineTo(x + w, y); this.lineTo(x + w, y + h); this.lineTo(x, y + h); this.closePath(); }
  arc(x, y, r, from, to) {
    const turn = Math.min(Math.abs(to - from), 2 * Math.PI), n = turn > Math.PI ? 2 : 1;
    this.lineTo(x + r * Math.cos(from), y + r * Math.sin(from));
    for (let i = 1; i <= n; i += 1) {
      const a = from + (i / n) * Math.sign(to - from) * turn;
      const [ex, ey] = this.at(x + r * Math.cos(a), y + r * Math.sin(a)).map(round2);
      this.parts.push(`A${round2(r * this.unit())} ${round2(r * this.unit())} 0 0 ${to > from ? 1 : 0} ${ex} ${ey}`);
    }
  }
  addPath(other) { this.parts.push(...other.parts); }
  get d() { return this.parts.join(""); }
}

function record(chart) {
  const { ctx } = chart, ratio = chart.currentDevicePixelRatio, real = window.Path2D;
  const out = [], clips = [], stack = [];
  let clipped = "", now;
  const unit = () => { const m = ctx.getTransform(); return Math.hypot(m.a, m.b) / ratio; };
  const at = (x, y) => { const m = ctx.getTransform(); return [(m.a * x + m.c * y + m.e) / ratio, (m.b * x + m.d * y + m.f) / ratio]; };
  const fresh = () => { now = new Track(at, unit); };
  const emit = (tag, attributes, inside = "") => {
    const all = { ...attributes, "clip-path": clipped, opacity: ctx.globalAlpha < 1 ? ctx.globalAlpha : "" };
    out.push(`<${tag}${Object.entries(all).filter(([, v]) => v !== "").map(([k, v]) => ` ${k}="${markup(v)}"`).join("")}>${inside}</${tag}>`);
  };
  // A path of our own was drawn elsewhere; those of Chart.js's lines are kept in figure units already.
  const given = (path) => (path instanceof Track ? path : now).d;
  // SVG has no rgba(): the colour and its opacity are two attributes.
  const paint = (name, style) => { const [, rgb, a] = /^rgba\((.*), ([\d.]+)\)$/.exec(style) || []; return rgb ? { [name]: `rgb(${rgb})`, [`${name}-opacity`]: a } : { [name]: style }; };
  const fill = (d) => d && emit("path", { d, ...paint("fill", ctx.fillStyle) });
  const stroke = (d) => d && emit("path", { d, fill: "none", ...paint("stroke", ctx.strokeStyle), "stroke-width": round2(ctx.lineWidth * unit()), "stroke-dasharray": ctx.getLineDash().map((v) => v * unit()).join(" "), "stroke-linejoin": ctx.lineJoin });
  const box = (x, y, w, h) => { const path = new Track(at, unit); path.rect(x, y, w, h); return path.d; };
  const methods = {
    save() { stack.push(clipped); return CanvasRenderingContext2D.prototype.save.call(ctx); },
    restore() { if (stack.length) clipped = stack.pop(); return CanvasRenderingContext2D.prototype.restore.call(ctx); },
    beginPath: fresh,
    clip() { clips.push(`<clipPath id="c${clips.length}"><path d="${now.d}"${clipped ? ` clip-path="${clipped}"` : ""}/></clipPath>`); clipped = `url(#c${clips.length - 1})`; },
    fill: (path) => fill(given(path)),
    stroke: (path) => stroke(given(path)),
    fillRect: (...b) => fill(box(...b)),
    strokeRect: (...b) => stroke(box(...b)),
    clearRect() {}, drawImage() {}, strokeText() {},
    fillText(text, x, y) {
      const m = ctx.getTransform(), [px, py] = at(x, y).map(round2), angle = round2((Math.atan2(m.b, m.a) * 180) / Math.PI);
      const [, size, family] = /([\d.]+)px\s+(.*)$/.exec(ctx.font) || [0, 12, "sans-serif"];
      const down = { middle: 0.35, top: 0.8, hanging: 0.8, bottom: -0.2 }[ctx.textBaseline] || 0;
      const anchor = { center: "middle", right: "end", end: "end" }[ctx.textAlign] || "start";
      emit("text", { x: px, y: py, dy: down ? `${round2(down * size)}` : "", transform: angle ? `rotate(${angle} ${px} ${py})` : "", fill: ctx.fillStyle, "font-size": size, "font-family": family.replaceAll('"', "'"), "font-weight": /bold|[6-9]00/.test(ctx.font) ? "bold" : "", "text-anchor": anchor }, markup(text));
    },
  };
  for (const name of ["moveTo", "lineTo", "quadraticCurveTo", "bezierCurveTo", "closePath", "rect", "arc"]) methods[name] = (...a) => now[name](...a);
  fresh();
  try {
    window.Path2D = class extends Track { constructor() { super(at, unit); } };
    Object.assign(ctx, methods);
    chart.setActiveElements([]);
    chart.tooltip.setActiveElements([], { x: 0, y: 0 });
    chart.update("none"); // lines forget the paths that they keep
    out.length = clips.length = 0;
    chart.draw();
  } finally {
    for (const name of Object.keys(methods)) delete ctx[name];
    window.Path2D = real;
    chart.update("none");
  }
  return `<defs>${clips.join("")}</defs>${out.join("")}`;
}

// The figure of a card: its title, the names of its lines, then its charts one below the other.
function figure(title, list) {
  const wide = Math.max(...list.map((c) => c.width)), family = Chart.defaults.font.family.replaceAll('"', "'");
  const text = (x, y, words, size, weight) => `<text x="${x}" y="${y}" fill="${css("--text")}" font-family="${markup(family)}" font-size="${size}" font-weight="${weight}">${markup(words)}</text>`;
  const parts = [text(12, 20, title, 14, 600)];
  let x = 12, y = 40;
  const lines = list.flatMap((c) => (c.config.type === "line" && !c.options.plugins.legend.display ? c.data.datasets.filter((d) => !d.band && !d.hidden) : []));
  const pen = list[0].ctx;
  pen.save();
  pen.font = `12px ${Chart.defaults.font.family}`;
  for (const line of lines.length > 1 ? lines : []) {
    const space = 44 + pen.measureText(line.label).width;
    if (x > 12 && x + space > wide) { x = 12; y += 18; }
    parts.push(`<line x1="${x}" y1="${y - 4}" x2="${x + 24}" y2="${y - 4}" stroke="${line.borderColor}" stroke-width="2.5" stroke-dasharray="${line.borderDash.join(" ")}"/>`, text(x + 30, y, line.label, 12, 400));
    x += space;
  }
  pen.restore();
  y += lines.length > 1 ? 12 : -12;
  for (const chart of list) {
    parts.push(`<g transform="translate(8 ${y})">${record(chart).replaceAll(/(id="|url\(#)c/g, `$1c${y}-`)}</g>`);
    y += chart.height;
  }
  const [w, h] = [Math.ceil(wide) + 20, Math.ceil(y) + 8];
  return { w, h, svg: `<svg xmlns="http://www.w3.org/2000/svg" width="${w}" height="${h}" viewBox="0 0 ${w} ${h}"><rect width="${w}" height="${h}" fill="${css("--card")}"/>${parts.join("")}</svg>` };
}

function hand(name, content, type) {
  const link = el("a", { download: name, href: URL.createObjectURL(content instanceof Blob ? content : new Blob([content], { type: `${type};charset=utf-8` })) });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60000);
}

function handPng(name, { w, h, svg }) {
  const image = new Image(), canvas = el("canvas", { width: 3 * w, height: 3 * h });
  image.addEventListener("load", () => {
    canvas.getContext("2d").drawImage(image, 0, 0, 3 * w, 3 * h);
    canvas.toBlob((blob) => hand(name, blob));
  });
  image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(svg)}`;
}

const fileName = (title) => title.toLowerCase().replace(/[^a-z0-9]+/g, "-").replace(/^-|-$/g, "") || "page";
const LATEX = { "\\": "\\textbackslash{}", "~": "\\textasciitilde{}", "^": "\\textasciicircum{}", "±": "$\\pm$", "−": "$-$", "–": "--", "↑": "$\\uparrow$", "↓": "$\\downarrow$", "μ": "$\\mu$", "ζ": "$\\zeta$", "…": "\\ldots{}", "<": "\\textless{}", ">": "\\textgreater{}", "|": "\\textbar{}" };
const latexText = (text) => text.replace(/[\\~^±−–↑↓μζ…<>|{}$&#_%]/g, (c) => LATEX[c] || `\\${c}`);
const csvText = (v) => { const text = String(v ?? ""); return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text; };

// A cell's `data-values` are its numbers for CSV, as JSON; a heading's are the names of these.
const values = (row) => [...row.cells].flatMap((c) => (c.dataset.values ? JSON.parse(c.dataset.values) : [c.textContent.trim()]));
const toCsv = (table) => [...table.rows].map((r) => values(r).map(csvText).join(",")).join("\n") + "\n";
function toLatex(table) {
  const [head, ...body] = [...table.rows];
  const line = (row) => [...row.cells].map((c) => { const t = latexText(c.textContent.trim()); return c.classList.contains("best") && t ? `\\textbf{${t}}` : t; }).join(" & ");
  const form = [...head.cells].map((c, i) => (i && !c.classList.contains("text") ? "r" : "l")).join("");
  return `% \\usepackage{booktabs}\n\\begin{tabular}{${form}}\n\\toprule\n${line(head)} \\\\\n\\midrule\n${body.map((r) => `${line(r)} \\\\\n`).join("")}\\bottomrule\n\\end{tabular}\n`;
}

function saver(what, title, kinds) {
  const choice = el("select", { class: "save", "aria-label": `Save ${title} as a file`, title: `Save this ${what} as a file` }, el("option", { value: "" }, "Save"), Object.keys(kinds).map((k) => el("option", { value: k }, k)));
  choice.addEventListener("change", () => { const made = kinds[choice.value]; choice.value = ""; made(); });
  return choice;
}
// `find` gives the node whose charts or table are saved: it may be drawn anew at any time.
const saveFigure = (title, find) => {
  const made = () => figure(title, charts.filter((c) => c.canvas && find().contains(c.canvas)));
  return saver("figure", title, { PNG: () => handPng(`${fileName(title)}.png`, made()), SVG: () => hand(`${fileName(title)}.svg`, made().svg, "image/svg+xml") });
};
const saveTable = (title, find) => {
  const table = () => (find().matches("table") ? find() : find().querySelector("table"));
  return saver("table", title, { CSV: () => hand(`${fileName(title)}.csv`, toCsv(table()), "text/csv"), LaTeX: () => hand(`${fileName(title)}.tex`, toLatex(table()), "application/x-tex") });
};
