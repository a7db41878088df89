// Stored bytes by the day of the records, as bars.

class GrowthChart {
  constructor(growth) {
    this.days = growth.days;
    this.canvas = make("canvas", { role: "img", "aria-label": this.words() });
    this.tip = make("div", { class: "tip", hidden: true });
    this.element = make("div", { class: "chart" }, this.canvas, this.tip);
    this.canvas.addEventListener("pointermove", (event) => this.point(event));
    this.canvas.addEventListener("pointerleave", () => { this.tip.hidden = true; });
    new ResizeObserver(() => requestAnimationFrame(() => this.paint())).observe(this.element);
    window.addEventListener("kts-theme", () => this.paint());
  }

  words() {
    if (!this.days.length) return "No segment has a date.";
    const most = this.days.reduce((one, other) => (Number(other.stored_bytes) > Number(one.stored_bytes) ? other : one));
    return `Stored bytes a day from ${dated(this.days[0].day)} to ${dated(this.days.at(-1).day)}; most on ${dated(most.day)}: ${sized(most.stored_bytes)}.`;
  }

  // Bars of one day, or of as many as make each wide enough to be seen.
  bars() {
    const first = this.days[0].day, last = this.days.at(-1).day;
    const room = Math.max((this.width - 90) / 3, 10);
    const step = [1, 7, 30, 91, 365, 3650].find((days) => (last - first + 1) / days <= room) || 36500;
    const found = new Map();
    for (const day of this.days) {
      const start = first + Math.floor((day.day - first) / step) * step;
      const bar = found.get(start) || { start, bytes: 0, segments: 0 };
      bar.bytes += Number(day.stored_bytes);
      bar.segments += day.segments;
      found.set(start, bar);
    }
    return { first, last, step, bars: [...found.values()] };
  }

  paint() {
    this.width = this.element.clientWidth;
    if (!this.width) return;
    const height = 220, scale = window.devicePixelRatio || 1, colours = palette();
    this.canvas.width = Math.round(this.width * scale);
    this.canvas.height = Math.round(height * scale);
    this.canvas.style.width = `${this.width}px`;
    this.canvas.style.height = `${height}px`;
    const pen = this.canvas.getContext("2d");
    pen.setTransform(scale, 0, 0, scale, 0, 0);
    pen.font = "12px system-ui, sans-serif";
    pen.fillStyle = colours.muted;
    pen.textBaseline = "middle";
    if (!this.days.length) return void pen.fillText("no segment has a date", 10, height / 2);
    const shown = this.shown = this.bars();
    const most = Math.max(...shown.bars.map((bar) => bar.bytes / shown.step)) || 1;
    const left = 76, right = this.width - 14, bottom = height - 26, top = 14;
    const count = Math.floor((shown.last - shown.first) / shown.step) + 1;
    // A few days are no wider than bars of a chart with many.
    const slot = Math.min((right - left) / count, 60);
    Object.assign(shown, { left, slot });
    pen.textAlign = "right";
    const unit = 1024 ** Math.floor(Math.log(most) / Math.log(1024));
    const step = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000].find((by) => most / unit / by <= 4) * unit;
    for (let value = 0; value <= most; value += step) {
      const y = Math.round(bottom - (value / most) * (bottom - top)) + 0.5;
      pen.strokeStyle = colours.line;
      pen.beginPath();
      pen.moveTo(left, y);
      pen.lineTo(right, y);
      pen.stroke();
      pen.fillText(sized(value), left - 8, y);
    }
    pen.fillStyle = colours.served;
    for (const bar of shown.bars) {
      const tall = Math.max((bar.bytes / shown.step / most) * (bottom - top), 1);
      const x = left + ((bar.start - shown.first) / shown.step) * slot;
      pen.fillRect(x, bottom - tall, Math.max(slot - (slot > 3 ? 1 : 0), 1), tall);
    }
    pen.fillStyle = colours.muted;
    pen.textAlign = "center";
    const every = Math.ceil(90 / slot);
    for (let number = 0; number < count; number += every) {
      const x = left + (number + 0.5) * slot;
      if (x < right - 30 || number === 0) pen.fillText(dated(shown.first + number * shown.step), Math.max(x, left + 20), height - 11);
    }
  }

  point(event) {
    if (!this.shown) return;
    const { left, slot, first, step, bars } = this.shown;
    const number = Math.floor((event.clientX - this.canvas.getBoundingClientRect().left - left) / slot);
    const bar = bars.find((one) => one.start === first + number * step);
    this.tip.hidden = !bar;
    if (!bar) return;
    const span = step === 1 ? dated(bar.start) : `${dated(bar.start)} and ${step - 1} days more`;
    const mean = step === 1 ? "" : `, ${sized(bar.bytes / step)} a day`;
    this.tip.replaceChildren(make("div", { class: "first" }, span), make("div", {}, `${sized(bar.bytes)} in ${plural(bar.segments, "segment")}${mean}`));
    this.tip.style.left = `${Math.min(event.clientX + 14, window.innerWidth - 240)}px`;
    this.tip.style.top = `${event.clientY + 14}px`;
  }
}
