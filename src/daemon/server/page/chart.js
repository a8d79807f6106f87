'use strict';
// Charts of the last hour: hand-made SVG, redrawn as a whole. One cursor is shared by the charts of
// a variant; it is moved by the pointer or, with the focus in a chart, by the arrow keys.

const SVG = 'http://www.w3.org/2000/svg';

/** An element of SVG with attributes and children. */
function svg(name, attributes, ...children) {
  const element = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.append(...children);
  return element;
}

/** The shortest of the usual spans, in seconds, that shows everything that is known. */
function spanFor(seconds) {
  return [300, 900, 1800, 3600].find(span => seconds <= span) || 3600;
}

/** Marks of an axis from 0 to at least `max`, at most five of them. */
function axisMarks(max, whole) {
  const rough = Math.max(max, 1e-9) / 4;
  const power = 10 ** Math.floor(Math.log10(rough));
  let step = [1, 2, 2.5, 5, 10].map(it => it * power).find(it => it >= rough * 0.999);
  if (whole) step = Math.max(1, Math.ceil(step));
  const count = Math.max(1, Math.ceil(max / step - 1e-9));
  return Array.from({ length: count + 1 }, (_, index) => index * step);
}

/**
 * A chart in `box`. A series is {name, css, step, area, points: [[age, value or null], …]} with
 * the oldest point first; a value is kept until the next point where `step` is set.
 */
class Chart {
  constructor(box, options, cursor) {
    this.options = options;
    this.cursor = cursor;
    this.figure = document.createElement('figure');
    this.figure.className = 'chart';
    const caption = document.createElement('figcaption');
    this.title = document.createElement('span');
    this.title.className = 'chart-title';
    this.title.textContent = options.title;
    this.legend = document.createElement('span');
    this.legend.className = 'legend';
    caption.append(this.title, this.legend);
    this.stage = document.createElement('div');
    this.stage.className = 'stage';
    this.stage.tabIndex = 0;
    this.stage.setAttribute('role', 'slider');
    this.stage.setAttribute('aria-label', options.title + ', read-out over time');
    this.stage.setAttribute('aria-orientation', 'horizontal');
    this.marks = document.createElement('div');
    this.marks.className = 'marks';
    this.marks.setAttribute('role', 'group');
    this.marks.setAttribute('aria-label', options.title + ', decisions');
    this.plot = document.createElement('div');
    this.plot.className = 'plot';
    this.plot.append(this.stage, this.marks);
    this.readout = document.createElement('p');
    this.readout.className = 'readout';
    this.figure.append(caption, this.plot, this.readout);
    this.marked = new Map();
    box.append(this.figure);
    this.stage.addEventListener('keydown', event => this.key(event));
    this.stage.addEventListener('pointermove', event => this.point(event));
    this.stage.addEventListener('pointerleave', () => cursor.move(null));
    this.stage.addEventListener('blur', () => cursor.move(null));
    cursor.charts.push(this);
  }

  key(event) {
    const stride = this.span / 60;
    const now = this.cursor.age === null ? 0 : this.cursor.age;
    const moves = {
      ArrowLeft: now + stride, ArrowRight: now - stride, PageUp: now + 10 * stride,
      PageDown: now - 10 * stride, Home: this.span, End: 0,
    };
    if (!(event.key in moves)) return;
    event.preventDefault();
    this.cursor.move(Math.min(this.span, Math.max(0, moves[event.key])));
  }

  point(event) {
    const box = this.stage.getBoundingClientRect();
    const share = (event.clientX - box.left - this.left) / (this.width - this.left - this.right);
    this.cursor.move(this.span * (1 - Math.min(1, Math.max(0, share))));
  }

  /**
   * Draws `series`, `zones` [{from, to, css}] and `lines` [{value, name}] over `span` seconds, with
   * `marks` of decisions, and what is `ahead` of now in a strip of its own scale.
   */
  draw(now, span, series, zones, lines, marks = [], ahead = null) {
    Object.assign(this, { now, span, series, zones, lines });
    this.width = Math.max(240, this.stage.clientWidth);
    this.height = this.options.height;
    this.left = 44;
    this.right = !ahead ? 10 : this.width < 420 ? 58 : 84;
    const { width, height, left, right } = this;
    const [top, bottom] = [18, height - 20];
    const values = series.flatMap(it => it.points.map(point => point[1])).filter(it => it !== null);
    if (ahead) values.push(...ahead.points.flatMap(it => [it.from, it.to]).filter(it => it !== null));
    const most = Math.max(this.options.least, ...values, ...lines.map(line => line.value));
    const ticks = axisMarks(most, this.options.whole);
    const highest = ticks[ticks.length - 1];
    const x = age => left + (1 - Math.min(age, span) / span) * (width - left - right);
    const y = value => bottom - (value / highest) * (bottom - top);
    this.x = x;
    const picture = svg('svg', { viewBox: `0 0 ${width} ${height}`, width, height, 'aria-hidden': 'true' });
    for (const zone of zones) {
      const from = x(Math.min(zone.from, span));
      picture.append(svg('rect', {
        class: 'zone ' + zone.css, x: from, y: top, width: Math.max(1, x(zone.to) - from), height: bottom - top,
      }));
    }
    for (const tick of ticks) {
      picture.append(svg('path', { class: 'grid', d: `M${left} ${y(tick)}H${width - right}` }));
      picture.append(svg('text', { class: 'axis', x: left - 6, y: y(tick) + 4, 'text-anchor': 'end' }, this.options.tick(tick)));
    }
    const every = { 300: 60, 900: 300, 1800: 600, 3600: 900 }[span];
    for (let age = 0; age <= span; age += every) {
      const anchor = age === 0 ? 'end' : age === span ? 'start' : 'middle';
      picture.append(svg('path', { class: 'mark', d: `M${x(age)} ${bottom}v4` }));
      picture.append(svg('text', { class: 'axis', x: x(age), y: height - 3, 'text-anchor': anchor },
        age === 0 ? 'now' : `−${age / 60}${age === span ? ' min' : ''}`));
    }
    for (const line of lines) {
      picture.append(svg('path', { class: 'limit', d: `M${left} ${y(line.value)}H${width - right}` }));
      picture.append(svg('text', { class: 'axis limit-name', x: width - right - 2, y: y(line.value) - 3, 'text-anchor': 'end' }, line.name));
    }
    for (const it of series) {
      if (it.area) picture.append(svg('path', { class: 'area ' + it.css, d: this.path(it, x, y, bottom) }));
    }
    for (const it of series) {
      if (!it.area) picture.append(svg('path', { class: 'series ' + it.css, d: this.path(it, x, y, null) }));
    }
    if (ahead) this.drawAhead(picture, ahead, y, top, bottom);
    this.hair = svg('path', { class: 'hair', d: '' });
    picture.append(this.hair);
    this.stage.replaceChildren(picture);
    this.drawLegend();
    this.drawMarks(marks.filter(it => it.age <= span));
    this.stage.setAttribute('aria-valuemin', String(-span));
    this.stage.setAttribute('aria-valuemax', '0');
    this.showCursor();
  }

  /** The path of a series; with `base`, closed down to it. What is null is a gap. */
  path(series, x, y, base) {
    let path = '';
    let run = [];
    const finish = () => {
      if (run.length > 1 || (run.length === 1 && series.step)) {
        path += 'M' + run.map(point => point.join(' ')).join('L');
        if (base !== null) path += `L${run[run.length - 1][0]} ${base}L${run[0][0]} ${base}Z`;
      }
      run = [];
    };
    series.points.forEach(([age, value], index) => {
      const next = series.points[index + 1];
      const gap = !series.step && index > 0 && series.points[index - 1][0] - age > series.gap;
      if (gap || value === null) finish();
      if (value === null) return;
      const at = [x(age).toFixed(1), y(value).toFixed(1)];
      run.push(at);
      if (series.step) run.push([x(next ? next[0] : series.until).toFixed(1), at[1]]);
    });
    finish();
    return path;
  }

  /** The strip beyond now: straight lines to the values at the end of the horizon. */
  drawAhead(picture, { name, points }, y, top, bottom) {
    const [from, to] = [this.width - this.right, this.width - 12];
    picture.append(svg('rect', { class: 'ahead', x: from, y: top, width: to - from, height: bottom - top }));
    picture.append(svg('path', { class: 'now', d: `M${from} ${top}V${bottom}` }));
    picture.append(svg('text', { class: 'axis', x: to, y: this.height - 3, 'text-anchor': 'end' }, name));
    for (const { css, from: start, to: end } of points) {
      if (end === null) continue;
      if (start !== null) {
        picture.append(svg('path', { class: `series beyond ${css}`, d: `M${from} ${y(start)}L${to} ${y(end)}` }));
      }
      picture.append(svg('circle', { class: `dot-ahead ${css}`, cx: to, cy: y(end), r: 3.5 }));
    }
  }

  /** Decisions above the plot: one can be tabbed to, and arrow keys go from one to the next. */
  drawMarks(marks) {
    const numbers = new Set(marks.map(it => it.number));
    for (const [number, mark] of this.marked) {
      if (!numbers.has(number)) {
        mark.remove();
        this.marked.delete(number);
      }
    }
    const latest = Math.max(...numbers);
    const focused = [...this.marked].find(([, mark]) => mark === document.activeElement);
    for (const { number, css, kind, age, text } of marks) {
      if (!this.marked.has(number)) this.marked.set(number, this.makeMark(number));
      const mark = this.marked.get(number);
      mark.className = `decision ${css} ${kind}`;
      mark.textContent = { up: '▲', down: '▼', flat: '■' }[kind];
      mark.style.insetInlineStart = `${this.x(age)}px`;
      mark.title = text;
      mark.setAttribute('aria-label', text);
      mark.tabIndex = number === (focused ? focused[0] : latest) ? 0 : -1;
    }
  }

  makeMark(number) {
    const mark = document.createElement('button');
    mark.type = 'button';
    mark.dataset.number = number;
    const read = () => { this.readout.textContent = mark.title; };
    mark.addEventListener('focus', read);
    mark.addEventListener('pointerenter', read);
    mark.addEventListener('pointerleave', () => this.showCursor());
    mark.addEventListener('blur', () => this.showCursor());
    mark.addEventListener('keydown', event => {
      const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (!step) return;
      event.preventDefault();
      const order = [...this.marked.keys()].sort((a, b) => a - b);
      const next = this.marked.get(order[order.indexOf(number) + step]);
      if (!next) return;
      mark.tabIndex = -1;
      next.tabIndex = 0;
      next.focus();
    });
    // The first of the document is the oldest, as on the axis.
    const after = [...this.marks.children].find(it => Number(it.dataset.number) > number);
    this.marks.insertBefore(mark, after || null);
    return mark;
  }

  drawLegend() {
    const items = this.series.map(it => [it.css, it.name]);
    for (const [css, name] of [['held', 'held'], ['none', 'no number'], ['silent', 'not deciding']]) {
      if (this.zones.some(zone => zone.css === css)) items.push(['zone ' + css, name]);
    }
    this.legend.replaceChildren(...items.map(([css, name]) => {
      const key = document.createElement('span');
      key.className = 'key';
      const swatch = document.createElement('span');
      swatch.className = 'swatch ' + css;
      key.append(swatch, name);
      return key;
    }));
  }

  /** What a series says at an age; null where it says nothing. */
  static value(series, age) {
    const points = series.points;
    if (series.step) {
      let found = null;
      for (const point of points) if (point[0] >= age) found = point;
      return found && age >= series.until - 1e-6 ? found[1] : null;
    }
    let near = null;
    for (const point of points) {
      if (near === null || Math.abs(point[0] - age) < Math.abs(near[0] - age)) near = point;
    }
    return near !== null && Math.abs(near[0] - age) <= series.gap ? near[1] : null;
  }

  /** Moves the line to the cursor and writes what is there. */
  showCursor() {
    const reading = this.marks.contains(document.activeElement);
    if (!this.series || reading) return;
    const age = this.cursor.age;
    // What was last known holds until the next tick.
    const at = Math.max(age === null ? 0 : age, ...this.series.filter(it => it.step).map(it => it.until));
    const words = this.series.map(it => {
      const value = Chart.value(it, at);
      return `${it.name} ${value === null ? 'unknown' : this.options.say(value)}`;
    });
    const zone = this.zones.find(it => it.from >= at && it.to <= at);
    if (zone) words.push({ held: 'held', none: 'no number', silent: 'not deciding' }[zone.css]);
    const when = age === null ? 'now' : stamp(new Date(this.now - at * 1000));
    this.readout.textContent = `${when}: ${words.join(', ')}`;
    this.stage.setAttribute('aria-valuenow', String(-Math.round(age === null ? 0 : age)));
    this.stage.setAttribute('aria-valuetext', this.readout.textContent);
    const bottom = this.height - 20;
    this.hair.setAttribute('d', age === null ? '' : `M${this.x(age)} 18V${bottom}`);
  }
}

/** The cursor of some charts: an age in seconds, or null where nobody points. */
class Cursor {
  constructor() {
    this.charts = [];
    this.age = null;
  }

  move(age) {
    if (this.age === age) return;
    this.age = age;
    for (const chart of this.charts) chart.showCursor();
  }
}

