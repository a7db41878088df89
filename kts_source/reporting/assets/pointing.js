// Mouse and keyboard on the lanes, and the words for what is pointed at.

Object.assign(Lanes.prototype, {
  follow() {
    this.box.addEventListener("wheel", (event) => {
      if (!event.ctrlKey && !event.metaKey && !event.shiftKey) return;
      event.preventDefault();
      const by = event.deltaY || event.deltaX;
      this.zoom(Math.exp(Math.sign(by) * Math.min(Math.abs(by), 100) / 250), this.valueAt(event.clientX - this.box.getBoundingClientRect().left));
    }, { passive: false });
    let drag = null;
    this.canvas.addEventListener("pointerdown", (event) => {
      drag = { x: event.clientX, moved: false };
      this.canvas.setPointerCapture(event.pointerId);
    });
    this.canvas.addEventListener("pointermove", (event) => {
      if (!drag) return this.point(event);
      const by = event.clientX - drag.x;
      if (!drag.moved && Math.abs(by) < 4) return undefined;
      drag = { x: event.clientX, moved: true };
      return this.pan(-by / (this.width - GUTTER - 12));
    });
    this.canvas.addEventListener("pointerup", (event) => {
      const clicked = drag && !drag.moved;
      drag = null;
      const part = clicked ? this.rowAt(event) : null;
      if (part) this.select(part.number);
    });
    this.canvas.addEventListener("pointercancel", () => { drag = null; });
    this.canvas.addEventListener("pointerleave", () => this.hide());
    this.canvas.addEventListener("dblclick", (event) => {
      this.zoom(0.4, this.valueAt(event.clientX - this.box.getBoundingClientRect().left));
    });
    this.box.addEventListener("keydown", (event) => this.press(event));
  },

  press(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const actions = {
      ArrowDown: () => this.step(1),
      ArrowUp: () => this.step(-1),
      ArrowLeft: () => this.pan(-0.1),
      ArrowRight: () => this.pan(0.1),
      "+": () => this.zoom(0.6),
      "=": () => this.zoom(0.6),
      "-": () => this.zoom(1 / 0.6),
      0: () => this.reset(),
      ",": () => this.stepSegment(-1),
      ".": () => this.stepSegment(1),
    };
    if (!actions[event.key]) return;
    event.preventDefault();
    actions[event.key]();
  },

  step(by) {
    const place = this.rows.findIndex((part) => part.number === this.selected);
    const next = Math.min(Math.max(place + by, 0), this.rows.length - 1);
    if (this.rows[next]) this.select(this.rows[next].number);
  },

  stepSegment(by) {
    const part = this.rows.find((one) => one.number === this.selected);
    if (!part) return;
    const [from, to] = [this.segments.first[part.number], this.segments.first[part.number + 1] - 1];
    if (to < from) return;
    const inside = this.pointed >= from && this.pointed <= to;
    this.pointed = inside ? Math.min(Math.max(this.pointed + by, from), to) : by > 0 ? from : to;
    const values = this.kind === "time" ? this.segments.newest : this.segments.start;
    const box = this.box.getBoundingClientRect();
    const place = this.rows.indexOf(part);
    this.tell(segmentWords(this, this.pointed), box.left + Math.min(Math.max(this.at(values[this.pointed]), GUTTER), this.width - 40), box.top + AXIS + place * LANE - this.box.scrollTop + LANE);
    this.draw();
  },

  rowAt(event) {
    const y = event.clientY - this.box.getBoundingClientRect().top - AXIS;
    return y < 0 ? null : this.rows[Math.floor((y + this.box.scrollTop) / LANE)] || null;
  },

  point(event) {
    const part = this.rowAt(event);
    const x = event.clientX - this.box.getBoundingClientRect().left;
    if (!part) return this.hide();
    if (x < GUTTER) {
      this.pointed = -1;
      this.tell([part.name, part.reason], event.clientX, event.clientY);
      return this.draw();
    }
    const y = (event.clientY - this.box.getBoundingClientRect().top - AXIS + this.box.scrollTop) % LANE;
    const mark = this.markAt(part, x);
    const found = this.segmentAt(part, x, y >= 15);
    const words = [...mark, ...(found < 0 ? [] : segmentWords(this, found))];
    if (found !== this.pointed) {
      this.pointed = found;
      this.draw();
    }
    return words.length ? this.tell([part.name, ...words], event.clientX, event.clientY) : this.hide();
  },

  markAt(part, x) {
    const words = [];
    for (const mark of this.marks[part.number]) {
      const [from, to] = this.kind === "time" ? [mark.since, mark.until] : [mark.start, mark.stop];
      const left = this.at(from), right = this.at(to);
      if (x >= left - 3 && x <= Math.max(right, left + 3) + 1) words.push(mark.text);
    }
    return words.slice(0, 5);
  },

  // The segment under a place, or the nearest within a few pixels; strips first in their part.
  segmentAt(part, x, inStrip) {
    const { first, state, start, stop, since, newest } = this.segments;
    const [from, to] = this.kind === "time" ? [since, newest] : [start, stop];
    let best = -1, nearest = 3;
    for (let i = first[part.number]; i < first[part.number + 1]; i++) {
      const left = this.at(from[i]), right = this.at(to[i]);
      const away = x < left ? left - x : x > right ? x - right : 0;
      const penalty = (state[i] > 1) === inStrip ? 0 : 1;
      if (away + penalty < nearest) {
        best = i;
        nearest = away + penalty;
      }
    }
    return best;
  },

  tell(lines, x, y) {
    this.tip.replaceChildren(...lines.map((line, number) => make("div", { class: number ? null : "first" }, line)));
    this.tip.hidden = false;
    const { width, height } = this.tip.getBoundingClientRect();
    this.tip.style.left = `${Math.max(Math.min(x + 14, window.innerWidth - width - 8), 4)}px`;
    this.tip.style.top = `${y + height + 22 > window.innerHeight ? y - height - 10 : y + 16}px`;
  },

  hide() {
    this.tip.hidden = true;
    if (this.pointed < 0) return;
    this.pointed = -1;
    this.draw();
  },
});

function segmentWords(lanes, i) {
  const { facts, segments } = lanes;
  const about = facts.exact ? "" : "about ";
  const id = facts.ids[i];
  return [
    `${facts.states[segments.state[i]]}: ${about}[${grouped(segments.start[i])}, ${grouped(segments.stop[i])})`,
    id ? `segment ${id}` : null,
    `${sized(segments.stored[i])} stored, ${sized(segments.original[i])} original (${times(segments.original[i], segments.stored[i])})`,
    `newest record ${moment(segments.newest[i])}`,
    Number.isNaN(segments.copied[i]) ? null : `copied ${moment(segments.copied[i])}`,
    `leader epoch ${segments.epoch[i] < 0 ? UNKNOWN : segments.epoch[i]}, ${facts.classes[segments.storageClass[i]]}`,
    [segments.flags[i] & 1 ? "compressed" : "", segments.flags[i] & 2 ? "encrypted" : ""].filter(Boolean).join(", ") || null,
  ].filter((line) => line !== null);
}
