const AXES = {
  rounds: { name: "Rounds", text: count },
  bytes_up: { name: "Bytes sent up", text: bytes },
  bytes: { name: "Bytes sent, up and down", text: bytes },
  seconds: { name: "Seconds", text: (v) => number(v, 3) },
  gradients: { name: "Gradient evaluations", text: count },
};
const NEAR = 28; // pixels from the pointer within which a curve is read
const READ = 8; // curves read at once: those nearest to the pointer
let charts = [];
Chart.defaults.font.family = getComputedStyle(document.body).fontFamily;

// What a group had spent after so many rounds: a function of the round, linear between knots.
function along(group, axis) {
  const { at } = group.axes;
  if (axis === "rounds") return (round) => round;
  const sum = axis === "bytes" ? ["bytes_up", "bytes_down"] : [axis];
  const spent = at.map((_, i) => sum.reduce((total, name) => (isNumber(group.axes[name][i]) ? total + group.axes[name][i] : NaN), 0));
  return (round) => {
    let low = 0, high = at.length - 1;
    while (high - low > 1) {
      const middle = (low + high) >> 1;
      if (at[middle] <= round) low = middle; else high = middle;
    }
    if (low === high || at[high] === round) return spent[high];
    const share = (round - at[low]) / (at[high] - at[low]);
    return spent[low] + share * (spent[high] - spent[low]);
  };
}

function points(group, curve, ys) {
  const x = along(group, state.axis);
  const list = curve.at.map((round, i) => ({ x: x(round), y: ys[i], round, i }));
  return list.filter((p) => isNumber(p.x) && isNumber(p.y) && (!state.logX || p.x > 0));
}

function datasets(data, name) {
  const out = [];
  const log = isLog(data, name), positive = (list) => (log ? list.filter((p) => p.y > 0) : list);
  data.groups.forEach((group, i) => {
    const curve = group.curves[name];
    if (!curve) return;
    const hidden = state.hidden.has(group.label);
    const main = positive(points(group, curve, curve.mean));
    const ends = group.status.diverged ? main.length - 1 : -1;
    out.push({
      label: nameOfGroup(data, group), data: main, hidden, curve, borderColor: colour(i), backgroundColor: colour(i),
      borderDash: dash(i), borderWidth: 2, tension: 0, order: 1, pointStyle: group.status.diverged ? "crossRot" : "circle",
      pointRadius: (c) => (c.dataIndex === ends ? 6 : main.length < 2 ? 4 : 0), pointBorderWidth: 2, pointHoverRadius: 4,
    });
    if (state.band === "none" || !curve.low) return;
    const edge = (sign, own) => curve.mean.map((m, j) => (state.band === "range" ? own[j] : m + sign * curve.sd[j]));
    let low = points(group, curve, edge(-1, curve.low)), high = points(group, curve, edge(1, curve.high));
    if (log) { // a band that reaches below zero ends at the mean
      low = low.map((p) => ({ ...p, y: p.y > 0 ? p.y : curve.mean[p.i] })).filter((p) => p.y > 0);
      high = positive(high);
    }
    const band = { label: group.label, band: true, hidden, borderWidth: 0, pointRadius: 0, pointHoverRadius: 0, order: 2 };
    out.push({ ...band, data: low, fill: false });
    out.push({ ...band, data: high, fill: "-1", backgroundColor: `${colour(i)}2e` });
  });
  return out;
}

// Settings of methods may differ by orders of magnitude; those far below the largest would lie on zero.
function isLog(data, name) {
  if (name in state.logY) return state.logY[name];
  const curves = data.groups.map((g) => g.curves[name]).filter(Boolean).map((c) => c.mean.filter(isNumber));
  const tops = curves.map((c) => Math.max(...c));
  return !(name in MAIN) && !isShare(name) && curves.flat().every((v) => v >= 0) && Math.min(...tops) > 0 && Math.max(...tops) > 20 * Math.min(...tops);
}

// The axis covers the values that are shown, and not zero for its own sake.
function bounds(sets, key, log, pad, from = -Infinity) {
  let low = Infinity, high = -Infinity;
  for (const set of sets) if (!set.hidden) for (const p of set.data) if (p.x >= from) { low = Math.min(low, p[key]); high = Math.max(high, p[key]); }
  if (!(low <= high)) return {};
  if (log) { const f = 10 ** Math.max(pad * Math.log10(high / low), low === high ? 0.2 : 0); return { min: low / f, max: high * f }; }
  const room = low === high ? Math.abs(low) / 10 || 0.5 : pad * (high - low);
  return { min: low >= 0 ? Math.max(0, low - room) : low - room, max: high + room };
}

// Read every curve at the pointer: of each the point nearest in x.
Chart.Interaction.modes.each = (chart, event) => {
  const found = [];
  for (const meta of chart.getSortedVisibleDatasetMetas()) {
    if (chart.data.datasets[meta.index].band || !meta.data.length) continue;
    let low = 0, high = meta.data.length - 1;
    while (high - low > 1) {
      const middle = (low + high) >> 1;
      if (meta.data[middle].x <= event.x) low = middle; else high = middle;
    }
    const index = Math.abs(meta.data[low].x - event.x) <= Math.abs(meta.data[high].x - event.x) ? low : high;
    if (Math.abs(meta.data[index].x - event.x) <= NEAR) found.push({ element: meta.data[index], datasetIndex: meta.index, index });
  }
  const away = (f) => Math.abs(f.element.y - event.y);
  return found.sort((a, b) => away(a) - away(b)).slice(0, READ);
};

const ruler = {
  id: "ruler",
  afterDatasetsDraw(chart) {
    const shown = chart.tooltip;
    if (!shown || !shown.opacity || chart.options.interaction.mode !== "each") return;
    const { ctx, chartArea: { top, bottom } } = chart;
    ctx.save();
    ctx.strokeStyle = css("--quiet");
    ctx.lineWidth = 1;
    ctx.setLineDash([3, 3]);
    ctx.beginPath();
    ctx.moveTo(shown.dataPoints[0].element.x, top);
    ctx.lineTo(shown.dataPoints[0].element.x, bottom);
    ctx.stroke();
    ctx.restore();
  },
};

function scale(log, name, text) {
  const ticks = { color: css("--quiet"), maxRotation: 0, autoSkipPadding: 14, includeBounds: false, callback: text };
  if (log) {
    ticks.callback = function label(v) {
      if (v <= 0) return "";
      const exact = v / 10 ** Math.floor(Math.log10(v) + 1e-9), lead = Math.round(exact);
      if (Math.abs(exact - lead) > 1e-6) return ""; // the end of the axis
      const narrow = Math.log10(this.max / this.min) < 2.2;
      return lead === 1 || (narrow && [2, 3, 5].includes(lead)) ? text(v) : "";
    };
  }
  const grid = { color: css("--grid"), tickLength: 4 };
  return { type: log ? "logarithmic" : "linear", ticks, grid, border: { color: css("--line") }, title: { display: Boolean(name), text: name, color: css("--quiet") } };
}

const look = () => ({
  animation: false, responsive: true, maintainAspectRatio: false,
  plugins: {
    legend: { display: false },
    tooltip: {
      backgroundColor: css("--card"), titleColor: css("--text"), bodyColor: css("--text"), borderColor: css("--line"),
      borderWidth: 1, padding: 8, cornerRadius: 6, boxPadding: 4, usePointStyle: false, boxWidth: 9, boxHeight: 9,
    },
  },
});

const clip = (text, most = 34) => (text.length > most ? `${text.slice(0, most - 1)}…` : text);

function said(name, item) {
  const { curve, label } = item.dataset;
  const { i, round } = item.raw;
  const text = value(name);
  let line = `${clip(label)}: ${text(curve.mean[i])}`;
  if (item.chart.width < 340) return line; // a phone has no room for more
  if (curve.low && state.band === "sd") line += ` ± ${text(curve.sd[i])}`;
  else if (curve.low) line += ` (${text(curve.low[i])} to ${text(curve.high[i])})`;
  return state.axis === "rounds" ? line : `${line}, round ${round}`;
}

function draw(where, config, label) {
  const canvas = el("canvas", { role: "img", "aria-label": label });
  where.replaceChildren(canvas);
  const chart = new Chart(canvas, config);
  charts.push(chart);
  return chart;
}

function curveChart(data, name, title) {
  const box = el("div", { class: "canvas" });
  const show = () => {
    const old = charts.find((c) => c.canvas && c.canvas.parentNode === box);
    if (old) { old.destroy(); charts = charts.filter((c) => c !== old); }
    const options = look();
    options.parsing = false;
    options.interaction = { mode: "each", intersect: false };
    const sets = datasets(data, name), x = bounds(sets, "x", state.logX, 0), half = state.zoom[name] ? (x.min + x.max) / 2 : undefined;
    const y = bounds(sets, "y", isLog(data, name), 0.05, half);
    if (isShare(name)) y.max = Math.min(y.max, 1.005);
    options.scales = { x: { ...scale(state.logX, AXES[state.axis].name, AXES[state.axis].text), ...x }, y: { ...scale(isLog(data, name), "", isShare(name) ? (v) => `${number(100 * v)} %` : value(name)), ...y } };
    if (state.axis === "rounds") options.scales.x.ticks.precision = 0;
    options.plugins.tooltip.itemSort = (a, b) => b.parsed.y - a.parsed.y;
    options.plugins.tooltip.callbacks = {
      title: (items) => (items.length ? `${AXES[state.axis].name}: ${AXES[state.axis].text(items[0].parsed.x)}` : ""),
      label: (item) => said(name, item),
      labelColor: (item) => ({ borderColor: item.dataset.borderColor, backgroundColor: item.dataset.borderColor }),
    };
    draw(box, { type: "line", data: { datasets: sets }, options, plugins: [ruler] }, title);
  };
  const toggle = (text, hint, is, turn) => {
    const button = el("button", { type: "button", class: "toggle", "aria-pressed": String(is()), title: hint }, text);
    button.addEventListener("click", () => { turn(!is()); button.setAttribute("aria-pressed", String(is())); show(); });
    return button;
  };
  const log = toggle("log y", "Logarithmic vertical axis", () => isLog(data, name), (on) => { state.logY[name] = on; });
  const zoom = toggle("zoom", "Fit the vertical axis to the second half", () => Boolean(state.zoom[name]), (on) => { state.zoom[name] = on; });
  redraws.push(show);
  return { node: card(title, [el("span", { class: "tools" }, name in MAIN ? zoom : "", log, saveFigure(title, () => box))], box), show };
}
let redraws = [];
