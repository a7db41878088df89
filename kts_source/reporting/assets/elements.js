// Elements from text alone: nothing that a tier holds is ever parsed as HTML.

function make(tag, settings = {}, ...children) {
  const found = document.createElement(tag);
  for (const [name, value] of Object.entries(settings)) {
    if (name.startsWith("on")) found.addEventListener(name.slice(2), value);
    else if (value !== null && value !== false) found.setAttribute(name, value === true ? "" : value);
  }
  found.append(...children.filter((child) => child !== null));
  return found;
}

function section(id, title, hint, ...children) {
  const heading = make("h2", { id: `${id}-title` }, title);
  const words = hint ? make("p", { class: "hint" }, hint) : null;
  return make("section", { id, "aria-labelledby": `${id}-title` }, heading, words, ...children);
}

// A table that sorts by a click on a heading and shows its rows in portions.
// columns: { title, value: row => shown text, sort: row => number or text, number: whether to the right }
class SortedTable {
  constructor(label, columns, rows, { portion = 50, onRow = null, order = null } = {}) {
    Object.assign(this, { columns, rows, portion, onRow, shown: portion, matches: () => true });
    this.order = order || { column: -1, down: false };
    this.body = make("tbody");
    this.more = make("button", { type: "button", class: "more", onclick: () => this.grow() });
    this.heads = columns.map((column, number) => {
      const button = make("button", { type: "button", onclick: () => this.sortBy(number) }, column.title);
      return make("th", { scope: "col", class: column.number ? "number" : null }, button);
    });
    const table = make("table", { "aria-label": label }, make("thead", {}, make("tr", {}, ...this.heads)), this.body);
    this.element = make("div", {}, make("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": label }, table), this.more);
    this.draw();
  }

  grow() {
    this.shown += 500;
    this.draw();
  }

  sortBy(column) {
    const down = this.order.column === column ? !this.order.down : Boolean(this.columns[column].number);
    this.order = { column, down };
    this.draw();
  }

  filter(matches) {
    this.matches = matches;
    this.shown = this.portion;
    this.draw();
  }

  draw() {
    const rows = this.rows.filter((row) => this.matches(row));
    const { column, down } = this.order;
    if (column >= 0) {
      const key = this.columns[column].sort || this.columns[column].value;
      const sign = down ? -1 : 1;
      // Unknown values come last either way.
      const rank = (value) => (value === null || value === undefined || Number.isNaN(value) ? null : value);
      rows.sort((one, other) => {
        const a = rank(key(one)), b = rank(key(other));
        if (a === null || b === null) return (a === null) - (b === null);
        return a < b ? -sign : a > b ? sign : 0;
      });
    }
    this.heads.forEach((head, number) => {
      if (number === column) head.setAttribute("aria-sort", down ? "descending" : "ascending");
      else head.removeAttribute("aria-sort");
    });
    this.body.replaceChildren(...rows.slice(0, this.shown).map((row) => this.row(row)));
    this.more.hidden = rows.length <= this.shown;
    this.more.textContent = `Show more: ${grouped(rows.length - this.shown)} of ${grouped(rows.length)} are left`;
    if (!rows.length) this.body.append(make("tr", {}, make("td", { colspan: this.columns.length, class: "none" }, "none")));
  }

  row(row) {
    const cells = this.columns.map((column, number) => {
      const value = column.value(row);
      const children = value instanceof Node ? [value] : [value === null || value === undefined ? UNKNOWN : String(value)];
      if (number === 0 && this.onRow) {
        return make("th", { scope: "row" }, make("button", { type: "button", class: "link", onclick: () => this.onRow(row) }, ...children));
      }
      return make(number ? "td" : "th", { class: column.number ? "number" : null, scope: number ? null : "row" }, ...children);
    });
    return make("tr", {}, ...cells);
  }
}
