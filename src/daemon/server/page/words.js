// Words, numbers and times. Text goes into the document by textContent only, so a name can never
// become markup.

const UNKNOWN = '–';
const byId = id => document.getElementById(id);

/** An element with a class and children; a string is put in as text. */
function el(name, css, ...children) {
  const element = document.createElement(name);
  if (css) element.className = css;
  element.append(...children);
  return element;
}

/** Sets a text where it differs, so that a selection and a screen reader are left in peace. */
function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

const CLOCK = new Intl.DateTimeFormat('en-GB', {
  hour: '2-digit', minute: '2-digit', second: '2-digit', timeZoneName: 'short',
});
const DAY = new Intl.DateTimeFormat('en-GB', { day: 'numeric', month: 'short' });

/** A time of day with its zone, and with the day unless it is today. */
function stamp(date) {
  const today = date.toDateString() === new Date().toDateString();
  return today ? CLOCK.format(date) : `${DAY.format(date)}, ${CLOCK.format(date)}`;
}

/** An element with an instant: absolute, with the age beside it, and in UTC on hover. */
function makeTime() {
  const absolute = el('span', 'absolute');
  const relative = el('span', 'relative');
  const time = el('time', '', absolute, ' ', relative);
  return time;
}

function showTime(time, at) {
  const date = new Date(at);
  if (time.dateTime !== at) {
    time.dateTime = at;
    time.title = `${date.toISOString()} (UTC)`;
  }
  say(time.children[0], stamp(date));
  say(time.children[1], `${ageText(Math.max(0, (Date.now() + state.skew - date.getTime()) / 1000))} ago`);
}

function ageText(seconds) {
  if (seconds === null) return 'unknown';
  if (seconds < 10) return `${seconds.toFixed(1)} s`;
  if (seconds < 120) return `${Math.round(seconds)} s`;
  if (seconds < 7200) return `${Math.round(seconds / 60)} min`;
  if (seconds < 172800) return `${Math.round(seconds / 3600)} h`;
  return `${Math.round(seconds / 86400)} d`;
}

const orUnknown = (value, text) => (value === null || value === undefined ? UNKNOWN : text(value));
const count = value => orUnknown(value, String);
const percent = value => orUnknown(value, it => `${Math.round(it * 100)}%`);
const requests = value => orUnknown(value, it => (Number.isInteger(it) ? String(it) : it.toFixed(1)));
const rate = value => orUnknown(value, it => it.toFixed(it < 10 ? 2 : 1));
const money = value => orUnknown(value, it => it.toFixed(2));
const plural = (number, one, many) => `${number} ${number === 1 ? one : many}`;
const keyOf = it => `${encodeURIComponent(it.namespace)}/${encodeURIComponent(it.variant)}`;
const modelKeyOf = it => `${encodeURIComponent(it.namespace)}/${encodeURIComponent(it.model)}`;

/** The text of a fact of a reason, such as "capacity 29.3 requests/s". */
function factText({ name, value, unit, text }) {
  const words = name.replaceAll('_', ' ');
  if (value === null) return `${words} ${text}`;
  if (unit === 'ratio') return `${words} ${percent(value)}`;
  const number = Number.isInteger(value) ? String(value) : value.toPrecision(3);
  return [words, number, unit === 'replicas' && value === 1 ? 'replica' : unit].filter(Boolean).join(' ');
}
