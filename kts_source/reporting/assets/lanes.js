// Partitions as lanes over time or over offsets, on a canvas as large as what is seen of them.

const LANE = 22;
const AXIS = 28;
const GUTTER = 210;
const MOST_HEIGHT = 600;
const MOST_PRINTED = 60;

class Lanes {
  constructor(facts, segments, { onSelect, onView }) {
    Object.assign(this, { facts, segments, onSelect, onView });
    this.rows = facts.rows;
    this.ways = colourings(facts, segments);
    this.way = "state";
    this.whole = { time: wholeRange("time", facts, segments), offset: wholeRange("offset", facts, segments) };
    this.views = { time: { ...this.whole.time }, offset: { ...this.whole.offset } };
    this.kind = "time";
    this.selected = -1;
    this.pointed = -1;
    this.marks = facts.rows.map((part) => marksOf(part, segments, facts.findingsOf.get(part.name) || []));
    this.canvas = make("canvas", { "aria-hidden": "true" });
    this.space = make("div", { class: "space" });
    this.box = make("div", {
      class: "lanes", tabindex: "0", role: "application",
      "aria-label": "Partitions as lanes. Arrow keys choose a partition and move the range, plus and minus zoom, 0 shows all, comma and full stop step through segments.",
    }, this.canvas, this.space);
    this.tip = make("div", { class: "tip", role: "status", hidden: true });
    this.element = make("div", { class: "lanes-frame" }, this.box, this.tip);
    this.box.addEventListener("scroll", () => this.draw());
    this.follow();
    // In the next frame: what an observer changes at once, it would be told of again.
    new ResizeObserver(() => requestAnimationFrame(() => this.fit())).observe(this.box);
  }

  get view() {
    return this.views[this.kind];
  }

  show(rows) {
    this.rows = rows;
    this.box.scrollTop = 0;
    this.fit();
  }

  set(kind, way) {
    this.kind = kind;
    this.way = way;
    this.hide();
    this.draw();
  }

  // Sets the size of the canvas from that of its box; `most` bounds the height when it is printed.
  fit(most = MOST_HEIGHT) {
    const height = Math.min(AXIS + this.rows.length * LANE + 4, most);
    this.box.style.height = `${height + 2}px`;
    this.width = this.box.clientWidth;
    this.height = height;
    const scale = window.devicePixelRatio || 1;
    this.canvas.width = Math.round(this.width * scale);
    this.canvas.height = Math.round(height * scale);
    this.canvas.style.width = `${this.width}px`;
    this.canvas.style.height = `${height}px`;
    this.space.style.height = `${Math.max(AXIS + this.rows.length * LANE + 4 - height, 0)}px`;
    this.draw();
  }

  at(value) {
    const { low, high } = this.view;
    return GUTTER + ((value - low) / (high - low)) * (this.width - GUTTER - 12);
  }

  valueAt(x) {
    const { low, high } = this.view;
    return low + ((x - GUTTER) / (this.width - GUTTER - 12)) * (high - low);
  }

  zoom(by, at = this.valueAt((GUTTER + this.width) / 2)) {
    const { low, high } = this.view;
    const { low: least, high: most } = this.whole[this.kind];
    const span = Math.min(Math.max((high - low) * by, this.kind === "time" ? 1 : 10), most - least);
    const from = Math.min(Math.max(at - ((at - low) / (high - low)) * span, least), most - span);
    this.views[this.kind] = { low: from, high: from + span };
    this.moved();
  }

  pan(share) {
    const { low, high } = this.view;
    const { low: least, high: most } = this.whole[this.kind];
    const by = Math.min(Math.max((high - low) * share, least - low), most - high);
    this.views[this.kind] = { low: low + by, high: high + by };
    this.moved();
  }

  reset() {
    this.views[this.kind] = { ...this.whole[this.kind] };
    this.moved();
  }

  // Shows offsets [start, stop) of a partition.
  reveal(part, start, stop) {
    const room = Math.max((stop - start) * 2, 20);
    const { low: least, high: most } = this.whole.offset;
    const low = Math.max(start - room, least);
    this.views.offset = { low, high: Math.min(Math.max(stop + room, low + 10), most) };
    this.select(part.number);
    this.moved();
  }

  moved() {
    this.hide();
    this.draw();
    this.onView();
  }

  select(number) {
    this.selected = number;
    const place = this.rows.findIndex((part) => part.number === number);
    const y = place * LANE;
    if (y < this.box.scrollTop) this.box.scrollTop = y;
    if (y + LANE > this.box.scrollTop + this.height - AXIS) this.box.scrollTop = y + LANE - this.height + AXIS;
    this.draw();
    this.onSelect(place < 0 ? null : this.rows[place]);
  }

  draw() {
    if (this.waiting) return;
    this.waiting = requestAnimationFrame(() => {
      this.waiting = null;
      this.paint();
    });
  }

  paint() {
    const pen = this.canvas.getContext("2d");
    const scale = window.devicePixelRatio || 1;
    this.colours = palette();
    pen.setTransform(scale, 0, 0, scale, 0, 0);
    pen.fillStyle = this.colours.panel;
    pen.fillRect(0, 0, this.width, this.height);
    pen.textBaseline = "middle";
    this.paintAxis(pen);
    pen.save();
    pen.beginPath();
    pen.rect(0, AXIS, this.width, this.height - AXIS);
    pen.clip();
    const top = this.box.scrollTop;
    const from = Math.max(Math.floor(top / LANE), 0);
    const to = Math.min(from + Math.ceil((this.height - AXIS) / LANE) + 1, this.rows.length);
    for (let place = from; place < to; place++) this.paintLane(pen, this.rows[place], AXIS + place * LANE - top);
    pen.restore();
  }

  paintAxis(pen) {
    const { low, high } = this.view;
    const most = Math.max(Math.floor((this.width - GUTTER) / (this.kind === "time" ? 110 : 120)), 2);
    const ticks = this.kind === "time" ? timeTicks(low, high, most) : offsetTicks(low, high, most);
    pen.font = "12px system-ui, sans-serif";
    pen.fillStyle = this.colours.muted;
    pen.textAlign = "left";
    pen.fillText(this.kind === "time" ? "time of the records (UTC)" : "offset", 10, AXIS / 2);
    pen.textAlign = "center";
    for (const [value, text] of ticks) {
      const x = Math.round(this.at(value)) + 0.5;
      const half = pen.measureText(text).width / 2;
      if (x - half >= GUTTER - 4 && x + half <= this.width - 2) pen.fillText(text, x, AXIS / 2);
      pen.strokeStyle = this.colours.line;
      pen.beginPath();
      pen.moveTo(x, AXIS - 5);
      pen.lineTo(x, this.height);
      pen.stroke();
    }
  }

  paintLane(pen, part, y) {
    const { colours } = this;
    if (part.number === this.selected) {
      pen.fillStyle = colours.track;
      pen.fillRect(0, y, this.width, LANE);
    }
    pen.fillStyle = part.number === this.selected ? colours.accent : colours.text;
    pen.font = `${part.number === this.selected ? "600 " : ""}12px system-ui, sans-serif`;
    pen.textAlign = "left";
    pen.fillText(elided(pen, part, GUTTER - 24), 10, y + LANE / 2);
    pen.save();
    pen.beginPath();
    pen.rect(GUTTER, y, this.width - GUTTER, LANE);
    pen.clip();
    pen.fillStyle = colours.line;
    pen.fillRect(GUTTER, y + 9, this.width - GUTTER - 12, 1);
    this.paintSegments(pen, part, y);
    this.paintMarks(pen, this.marks[part.number], y);
    pen.restore();
  }

  // Bars of what is served, and below them strips of what is not. Those narrower than a pixel are
  // drawn together, in the colour of the last.
  paintSegments(pen, part, y) {
    const { first, state, start, stop, since, newest } = this.segments;
    const [from, to] = this.kind === "time" ? [since, newest] : [start, stop];
    const { low, high } = this.view;
    const colour = this.ways[this.way].of;
    const runs = [null, null];
    const flush = (strip) => {
      const run = runs[strip];
      if (!run) return;
      pen.fillStyle = this.colours[run.colour];
      const width = Math.max(run.right - run.left, 1.5);
      pen.fillRect(run.left, y + (strip ? 16 : 4), width - (width > 5 ? 1 : 0), strip ? 3 : 11);
      runs[strip] = null;
    };
    for (let i = first[part.number]; i < first[part.number + 1]; i++) {
      if (!(to[i] >= low && from[i] <= high)) continue;
      const strip = state[i] > 1 ? 1 : 0;
      const left = this.at(from[i]), right = this.at(to[i]);
      const run = runs[strip];
      const small = right - left < 1.5;
      if (run && small && run.small && left - run.right < 1) {
        run.right = Math.max(run.right, right);
        run.colour = colour(i);
        if (run.right - run.left >= 3) flush(strip);
        continue;
      }
      flush(strip);
      runs[strip] = { left, right, colour: colour(i), small };
    }
    flush(0);
    flush(1);
    if (this.pointed >= first[part.number] && this.pointed < first[part.number + 1]) {
      const left = this.at(from[this.pointed]), right = this.at(to[this.pointed]);
      pen.strokeStyle = this.colours.text;
      pen.lineWidth = 1.5;
      pen.strokeRect(left - 1, y + 3, Math.max(right - left, 2) + 1, 17);
      pen.lineWidth = 1;
    }
  }

  paintMarks(pen, marks, y) {
    for (const mark of marks) {
      const from = this.kind === "time" ? mark.since : mark.start;
      const to = this.kind === "time" ? mark.until : mark.stop;
      if (Number.isNaN(from) || Number.isNaN(to)) continue;
      const left = this.at(from), right = Math.max(this.at(to), left + 3);
      if (right < GUTTER || left > this.width) continue;
      pen.fillStyle = this.colours[mark.colour];
      if (mark.kind === "epoch") {
        pen.fillRect(left, y + 1, 1, 17);
      } else if (mark.kind === "finding") {
        pen.beginPath();
        pen.moveTo(left - 4, y);
        pen.lineTo(left + 4, y);
        pen.lineTo(left, y + 6);
        pen.fill();
      } else if (mark.kind === "undecided") {
        pen.globalAlpha = 0.35;
        pen.fillRect(left, y + 4, right - left, 11);
        pen.globalAlpha = 1;
        pen.fillRect(left, y + 2, 2, 15);
        pen.fillRect(left, y + 2, right - left, 2);
      } else {
        pen.fillRect(left, y + 3, right - left, 13);
      }
    }
  }
}

// What stands on a lane besides segments, in offsets and in times.
function marksOf(part, segments, findings) {
  const found = [];
  const add = (kind, colour, from, to, text) => {
    const start = Number(from), stop = Number(to);
    const since = timeAt(segments, part.number, start);
    found.push({ kind, colour, start, stop, since, until: kind === "hole" ? since : timeAt(segments, part.number, stop), text });
  };
  for (const [epoch, start] of part.epochs || []) add("epoch", "text", start, start, `leader epoch ${epoch} begins`);
  for (const [start, stop] of part.unverifiable || []) add("gap", "warning", start, stop, `gap that cannot be proven: offsets [${grouped(start)}, ${grouped(stop)})`);
  if ((part.undecided || []).length) {
    const words = part.undecided.map(([producer, first]) => `producer ${producer} since offset ${grouped(first)}`);
    add("undecided", "undecided", part.last_stable_offset, part.tier_end, `undecided: ${words.slice(0, 3).join(", ")}`);
  }
  for (const [start, stop] of part.holes || []) add("hole", "hole", start, stop, `HOLE: offsets [${grouped(start)}, ${grouped(stop)})`);
  for (const one of findings) {
    if (one.start === null || one.severity === "info") continue;
    add("finding", one.severity === "error" ? "hole" : "warning", one.start, one.start, `audit: ${one.kind}`);
  }
  return found;
}

// A name cut in its middle: what tells partitions apart stands at the end.
function elided(pen, part, width) {
  const { name } = part;
  if (pen.measureText(name).width <= width) return name;
  let keep = name.length;
  const end = `-${part.partition}`;
  while (keep > 1 && pen.measureText(`${name.slice(0, keep)}…${end}`).width > width) keep -= 1;
  return `${name.slice(0, keep)}…${end}`;
}
