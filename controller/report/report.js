// SPDX-License-Identifier: Apache-2.0
// What the pictures of a report can do: say a point's numbers, look closer, and change to a logarithmic scale. The points are those of the
// page's data; without this script the pictures stay as they were drawn.
"use strict";
const WIDTH = 1000, LEFT = 70, RIGHT = 15, TOP = 22; // as in chart.c
const runs = [];
for (let s; (s = document.getElementById("run-" + runs.length)); )
	runs.push(JSON.parse(s.textContent));
const tip = document.getElementById("tip"), log = document.getElementById("log");
const charts = [...document.querySelectorAll("svg.chart")].map((svg) => {
	const curves = runs.map((r) => r.curves[svg.dataset.curve] || []);
	const chart = { svg, curves, height: +svg.dataset.height, all: [+svg.dataset.low, +svg.dataset.high] };
	chart.x = chart.all;
	return chart;
});

function widened([low, high]) {
	const room = high > low ? 0 : Math.abs(high) * 0.05 || 0.5;
	return [low - room, high + room];
}

function tick(span, parts) {
	const rough = span / parts, power = 10 ** Math.floor(Math.log10(rough)), digit = rough / power;
	return power * (digit <= 1 ? 1 : digit <= 2 ? 2 : digit <= 5 ? 5 : 10);
}

function ticks([low, high], parts) {
	const d = tick(high - low, parts), first = Math.ceil(low / d), list = [];
	for (let k = 0; k <= parts && (first + k) * d <= high; k++)
		list.push((first + k) * d);
	return list;
}

const short = (v, digits) => String(+v.toPrecision(digits));

function draw(c) {
	const scale = log.checked ? (v) => Math.log10(v) : (v) => v, back = log.checked ? (v) => 10 ** v : (v) => v;
	const seen = c.curves.map((points) => points.filter((p) => p[0] >= c.x[0] && p[0] <= c.x[1] && isFinite(scale(p[1]))));
	let low = Infinity, high = -Infinity;
	for (const points of seen)
		for (const p of points) {
			low = Math.min(low, scale(p[1]));
			high = Math.max(high, scale(p[1]));
		}
	if (low > high)
		return;
	if (+c.svg.dataset.zero && !log.checked)
		low = Math.min(low, 0);
	const y = widened([low, high]), atX = (v) => LEFT + ((v - c.x[0]) / (c.x[1] - c.x[0])) * (WIDTH - LEFT - RIGHT);
	const atY = (v) => TOP + ((y[1] - v) / (y[1] - y[0])) * c.height;
	for (const path of c.svg.querySelectorAll(".curve")) {
		const points = seen[path.dataset.run].map((p) => atX(p[0]).toFixed(1) + " " + atY(scale(p[1])).toFixed(1));
		path.setAttribute("d", points.length ? "M" + points.join("L") + (points.length === 1 ? "h.1" : "") : "");
	}
	for (const mark of c.svg.querySelectorAll(".mark")) {
		const x = +mark.dataset.x;
		mark.setAttribute("transform", "translate(" + atX(x).toFixed(1) + ")");
		mark.style.display = x < c.x[0] || x > c.x[1] ? "none" : "";
	}
	c.svg.querySelector(".ticks").innerHTML =
		ticks(c.x, 10).map((v) => `<text x="${atX(v)}" y="${TOP + c.height + 15}" text-anchor="middle">${short(v, 6)}</text>`).join("") +
		ticks(y, Math.floor(c.height / 36)).map((v) => `<path d="M${LEFT} ${atY(v)}H${WIDTH - RIGHT}"/>` +
			`<text x="${LEFT - 6}" y="${atY(v) + 4}" text-anchor="end">${short(back(v), 4)}</text>`).join("");
}

// The nearest point by x; points ascend.
function nearest(points, x) {
	let from = 0, to = points.length - 1;
	while (from < to) {
		const middle = (from + to) >> 1;
		if (points[middle][0] < x) from = middle + 1;
		else to = middle;
	}
	return from > 0 && x - points[from - 1][0] < points[from][0] - x ? points[from - 1] : points[from];
}

function valueAt(c, event) {
	const box = c.svg.getBoundingClientRect(), x = ((event.clientX - box.left) / box.width) * WIDTH;
	return c.x[0] + (Math.min(Math.max(x, LEFT), WIDTH - RIGHT) - LEFT) / (WIDTH - LEFT - RIGHT) * (c.x[1] - c.x[0]);
}

function tell(c, event) {
	const x = valueAt(c, event), lines = [];
	c.curves.forEach((points, i) => {
		const p = points.length && nearest(points, x);
		if (p) lines.push((runs.length > 1 ? runs[i].name + ", " : "") + c.svg.dataset.axis + " " + short(p[0], 9) + ": " + p[1]);
	});
	for (const mark of c.svg.querySelectorAll(".mark"))
		if (Math.abs(mark.dataset.x - x) < (c.x[1] - c.x[0]) / 150 && mark.querySelector("title"))
			lines.push(mark.querySelector("title").textContent);
	tip.textContent = lines.join("\n");
	tip.style.left = Math.min(event.clientX + 14, innerWidth - 330) + "px";
	tip.style.top = event.clientY + 14 + "px";
	tip.hidden = !lines.length;
}

for (const c of charts) {
	let from = null;
	c.svg.addEventListener("pointerdown", (event) => { from = valueAt(c, event); event.preventDefault(); });
	c.svg.addEventListener("pointermove", (event) => tell(c, event));
	c.svg.addEventListener("pointerleave", () => { tip.hidden = true; from = null; });
	const show = (x) => { for (const other of charts) if (c.svg.dataset.axis === other.svg.dataset.axis) { other.x = x || other.all; draw(other); } };
	c.svg.addEventListener("pointerup", (event) => {
		const x = [from, valueAt(c, event)].sort((a, b) => a - b);
		if (from !== null && x[1] - x[0] > (c.x[1] - c.x[0]) / 100) show(x);
		from = null;
	});
	c.svg.addEventListener("dblclick", () => show(null));
}
if (log)
	log.addEventListener("change", () => charts.forEach(draw));
