function ledger(data) {
  const ways = [["up", "↑"], ["down", "↓"]];
  const sums = new Map();
  data.groups.forEach((g) => g.ledger.forEach((r) => sums.set(r.channel, (sums.get(r.channel) || 0) + r.bytes)));
  const channels = [...sums.keys()].sort((a, b) => sums.get(b) - sums.get(a)); // the largest get colours of their own
  const find = (g, way, channel) => g.ledger.find((r) => r.way === way && r.channel === channel);
  const sets = ways.flatMap(([way, arrow]) => channels.filter((c) => data.groups.some((g) => find(g, way, c))).map((channel) => ({
    label: `${arrow} ${channel}`, stack: way, data: data.groups.map((g) => (find(g, way, channel) || { bytes: 0 }).bytes),
    backgroundColor: colour(channels.indexOf(channel)) + (way === "up" ? "" : "80"), borderColor: css("--card"), borderWidth: 1,
  })));
  const box = el("div", { class: "canvas" });
  box.style.height = `${110 + 46 * data.groups.length}px`;
  const show = () => {
    const options = look();
    options.indexAxis = "y";
    options.plugins.legend = { display: true, position: "top", align: "start", labels: { color: css("--text"), boxWidth: 12, boxHeight: 12 } };
    options.plugins.tooltip.callbacks = { label: (c) => `${c.dataset.label}: ${bytes(c.parsed.x)}` };
    const names = scale(false, "", null);
    names.type = "category";
    names.ticks = { color: css("--text"), autoSkip: false, callback(v) { return clip(this.getLabelForValue(v), 22); } };
    options.scales = { x: { ...scale(false, "Bytes", bytes), stacked: true }, y: { ...names, stacked: true } };
    draw(box, { type: "bar", data: { labels: data.groups.map((g) => nameOfGroup(data, g)), datasets: sets }, options, plugins: [airy] }, "Bytes by channel");
  };
  const rows = data.groups.flatMap((g, i) => g.ledger.map((r, j) => el("tr", {},
    el("td", { title: g.label, "data-values": JSON.stringify([g.label]) }, j ? "" : [swatch(i), " ", g.label]), el("td", { class: "text" }, r.way === "up" ? "↑ up" : "↓ down"),
    el("td", { class: "text" }, r.channel), cell(r.bytes, bytes), cell(r.per_round, bytes), el("td", {}, share(g, r)))));
  const head = [["Method", 1], ["Direction", 1], ["Channel", 1], ["In a run", 0], ["In a round", 0], ["Share of direction", 0]];
  const titles = head.map(([name, text]) => el("th", { scope: "col", class: text ? "text" : null }, name));
  const list = scroller("tall", el("table", {}, el("thead", {}, el("tr", {}, titles)), el("tbody", {}, rows)));
  const about = el("p", { class: "quiet" }, "Of a whole run, mean over seeds. Upper bar: clients to server (↑); lower, paler bar: server to clients (↓).");
  return [[card("Bytes by channel", [saveFigure("Bytes by channel", () => box)], about, box), card("Bytes by channel, as a table", [saveTable("Bytes by channel", () => list)], list)], show];
}
const cell = (v, text) => el("td", { "data-values": JSON.stringify([v]) }, text(v));
function share(group, row) {
  const all = group.ledger.filter((r) => r.way === row.way).reduce((sum, r) => sum + r.bytes, 0);
  return percent(row.bytes / all, 1);
}

// Room between a legend and the axis below it.
const airy = { id: "airy", beforeInit(chart) { const { legend } = chart, fit = legend.fit; legend.fit = function roomy() { fit.call(this); this.height += 12; }; } };
const COSTS = { gradients: "Gradient evaluations", bytes_up: "Bytes sent up", bytes_down: "Bytes sent down", seconds: "Seconds" };
function tuning(data) {
  const costs = Object.keys(COSTS).filter((c) => data.tuning.some((t) => isNumber(t.accuracy) && t[c] > 0));
  if (!costs.includes(state.cost)) [state.cost] = costs;
  const choice = el("select", { "aria-label": "Cost" }, costs.map((c) => el("option", { value: c }, COSTS[c])));
  choice.value = state.cost;
  const box = el("div", { class: "canvas" });
  const order = [...new Set([...data.groups.map((g) => g.label), ...data.tuning.map((t) => String(t.label))])];
  const show = () => {
    const text = state.cost.startsWith("bytes") ? bytes : state.cost === "seconds" ? seconds : count;
    const sets = data.tuning.filter((t) => isNumber(t.accuracy) && t[state.cost] > 0).map((t) => {
      const i = order.indexOf(String(t.label));
      const own = t[state.cost], more = t[`tuning_${state.cost}`] || 0;
      const data_ = more ? [{ x: own, y: t.accuracy, what: "one run" }, { x: own + more, y: t.accuracy, what: "with tuning" }] : [{ x: own, y: t.accuracy, what: "nothing to tune" }];
      return {
        label: clip(String(t.label)) + (more && !/tuned/.test(t.label) ? " (tuned)" : ""), clip: 12, data: data_, borderColor: colour(i), borderDash: [3, 3], borderWidth: 1.5, pointRadius: 6, pointBorderWidth: 2, pointHoverRadius: 7,
        pointBackgroundColor: (c) => (c.raw && c.raw.what === "one run" ? css("--card") : colour(i)), pointStyle: ["circle", "rect", "triangle", "rectRot"][Math.floor(i / LIGHT.length) % 4],
      };
    });
    const options = look();
    options.parsing = false;
    options.scales = { x: { ...scale(true, `${COSTS[state.cost]}, all runs of the search included`, text), ...bounds(sets, "x", true, 0.08) }, y: { ...scale(false, "Test accuracy", (v) => `${number(100 * v)} %`), ...bounds(sets, "y", false, 0.12) } };
    options.plugins.legend = { display: true, position: "top", align: "start", labels: { color: css("--text"), usePointStyle: true } };
    options.plugins.tooltip.callbacks = { label: (c) => `${clip(c.dataset.label)}, ${c.raw.what}: ${percent(c.parsed.y)} at ${text(c.parsed.x)}` };
    const old = charts.find((c) => c.canvas && c.canvas.parentNode === box);
    if (old) { old.destroy(); charts = charts.filter((c) => c !== old); }
    draw(box, { type: "line", data: { datasets: sets }, options, plugins: [airy] }, "Accuracy against cost");
  };
  choice.addEventListener("change", () => { state.cost = choice.value; show(); });
  const title = "Test accuracy against what it cost";
  return [card(title, [el("span", { class: "tools" }, choice, saveFigure(title, () => box))], box), show];
}

function settings(data) {
  const names = [...new Set(data.groups.flatMap((g) => Object.keys(g.settings)))];
  const differs = (n) => new Set(data.groups.map((g) => g.settings[n])).size > 1;
  const several = data.groups.length > 1;
  const list = el("tbody", {});
  const fill = () => {
    const shown = several && state.differing ? names.filter(differs) : names;
    const rows = shown.map((n) => el("tr", { class: differs(n) ? "differ" : null }, el("td", { title: n }, n), data.groups.map((g) => el("td", { title: g.settings[n] ?? "" }, g.settings[n] ?? "–"))));
    list.replaceChildren(...(rows.length ? rows : [el("tr", {}, el("td", {}, "No setting differs."))]));
  };
  const only = el("button", { type: "button", class: "toggle", "aria-pressed": String(state.differing) }, "only what differs");
  only.addEventListener("click", () => { state.differing = !state.differing; only.setAttribute("aria-pressed", String(state.differing)); fill(); });
  fill();
  const all = () => JSON.stringify(Object.fromEntries(data.groups.map((g) => [g.label, g.settings])), null, 2);
  const head = el("tr", {}, el("th", { scope: "col" }, "Setting"), data.groups.map((g, i) => el("th", { scope: "col" }, swatch(i), " ", g.label)));
  const table = el("table", {}, el("thead", {}, head), list);
  const sheet = card("Settings", [el("span", { class: "tools" }, several ? only : "", copier(all, "Copy as JSON"), saveTable("Settings", () => table))], scroller("tall settings", table));
  const lines = data.groups.flatMap((g) => g.commands);
  const text = lines.join("\n");
  const missing = data.groups.filter((g) => g.commands.length < g.runs).map((g) => g.label);
  const again = card("To run it again", lines.length ? [copier(() => text)] : [], lines.length ? scroller("wide", el("pre", {}, text)) : "",
    missing.length ? el("p", { class: "quiet" }, `Started from Python: ${missing.join(", ")}. Call fit with the settings below.`) : "");
  return [again, sheet];
}
