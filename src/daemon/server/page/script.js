// The page: asks the daemon, keeps what it answers, and says how old all of it is.

const INTERVAL = 2000;          // between two questions, in milliseconds
const INTERVAL_LARGE = 5000;    // the same for a fleet of more than LARGE variants
const LARGE = 300;
const PATIENCE = 5000;          // after which a question counts as not answered
const EXPLAIN_INTERVAL = 20000; // between two explanations of a variant, which are costly
const EXPLAIN_PATIENCE = 15000;
const UNFOLDED_MAX = 40;        // variants that are unfolded without being asked for
const MARKS_MAX = 100;          // decisions that are marked on a chart

const state = {
  status: null, summary: null, events: [],
  answered: null,               // performance.now() of the last whole answer
  answeredAt: null,             // the same on the wall clock
  skew: 0,                      // the daemon's clock less this one, in milliseconds
  problem: null, paused: false, busy: false, timer: null,
  search: '', show: 'all', order: 'worst', namespace: '', // in the address, too
  allAttention: false,
  folded: new Map(),            // what the reader chose, by model
  open: new Set(),              // variants whose details are shown
  resort: true, target: null,
};
const models = new Map();       // elements, by model
const rows = new Map();         // elements, by variant

// --- asking ------------------------------------------------------------------------------------

async function refresh() {
  if (state.busy) return;
  state.busy = true;
  clearTimeout(state.timer);
  try {
    const [status, summary, events] = await Promise.all([
      ask('api/v1/status'), ask('api/v1/summary'), ask('api/v1/events?limit=12'),
    ]);
    Object.assign(state, {
      status, summary, events: events.events, problem: null,
      answered: performance.now(), answeredAt: new Date(), skew: new Date(status.now) - Date.now(),
    });
    render();
    await Promise.all([...state.open].map(loadDetails));
  } catch (error) {
    state.problem = error.message;
    if (!(error instanceof Unanswered)) console.error(error);
  }
  state.busy = false;
  showAge();
  if (!state.paused && !document.hidden) {
    const large = state.summary && state.summary.variants.length > LARGE;
    state.timer = setTimeout(refresh, large ? INTERVAL_LARGE : INTERVAL);
  }
}

async function loadDetails(key) {
  const row = rows.get(key);
  if (!row || !row.details) return;
  const { namespace, variant } = row.variant;
  const query = new URLSearchParams({ namespace, variant });
  const path = `api/v1/history?${query}`;
  loadExplanation(row, query);
  const [decisions, history, events] = await Promise.all([
    ask(`api/v1/decisions?${query}`), ask(path), ask(`api/v1/events?${query}&limit=${MARKS_MAX}`),
  ]).catch(error => {
    // A variant that is gone by now goes with the next answer; a daemon that is gone is said above.
    if (error instanceof Unanswered) throw error;
    return [null, null, null];
  });
  if (!history || !row.details) return;
  const fresh = !row.history || row.history.answer !== history;
  row.whole = decisions.variants[0] || null;
  row.history = fresh ? { path, answer: history, received: performance.now() } : row.history;
  row.changes = events.events;
  updateDetails(row);
  drawHistory(row);
}

/** Asks what would change the number, now and then: the daemon decides many times to answer it. */
async function loadExplanation(row, query) {
  const now = performance.now();
  if (row.explaining || (row.explained && now - row.explained < EXPLAIN_INTERVAL)) return;
  row.explaining = true;
  try {
    row.explanation = await ask(`api/v1/explain?${query}`, EXPLAIN_PATIENCE);
  } catch (error) {
    row.explanation = { error: error.message };
  }
  Object.assign(row, { explaining: false, explained: performance.now() });
  if (row.details) updateDetails(row);
}

// --- how old it is -----------------------------------------------------------------------------

/** Says how old everything is; what is not current is greyed and has its age above it. */
function showAge() {
  const live = byId('live');
  const banner = byId('stale');
  const age = state.answered === null ? null : (performance.now() - state.answered) / 1000;
  const interval = (state.summary && state.summary.variants.length > LARGE ? INTERVAL_LARGE : INTERVAL) / 1000;
  const late = age !== null && age > interval + PATIENCE / 1000 + 1;
  const tick = state.status && state.status.tick;
  const tickAge = tick && age !== null ? tick.age_seconds + age : null;
  const patience = state.status ? Math.max(5, 5 * state.status.tick_interval_seconds) : null;
  let [kind, words, warning] = ['live', '', ''];
  const from = state.answeredAt && `What is shown is from ${stamp(state.answeredAt)}, ${ageText(age)} ago, and may be wrong by now.`;
  if (age === null) {
    kind = state.problem ? 'stale' : 'loading';
    words = state.problem ? 'No answer' : 'Asking the daemon…';
    if (state.problem) warning = `The daemon has not answered yet: ${state.problem}.`;
  } else if (state.problem || (late && !state.paused)) {
    [kind, words] = ['stale', `No answer for ${ageText(age)}`];
    warning = `The daemon does not answer: ${state.problem || 'it does not answer in time'}. ${from}`;
  } else if (state.paused) {
    [kind, words] = ['paused', `Paused ${ageText(age)} ago`];
    warning = `Paused. ${from}`;
  } else if (tickAge === null) {
    [kind, words] = ['loading', 'The daemon has not decided yet'];
  } else if (tick.age_seconds > patience) {
    [kind, words] = ['stale', `Last tick ${ageText(tickAge)} ago`];
    warning = `The daemon answers but does not decide: its last tick was ${ageText(tickAge)} ago. What is shown below is from then.`;
  } else {
    words = `Live, last tick ${ageText(tickAge)} ago`;
  }
  live.dataset.state = kind;
  say(byId('live-text'), words);
  // The age in the banner would be read aloud each second; it is announced once, when it appears.
  banner.hidden = !warning;
  banner.setAttribute('aria-live', banner.dataset.kind === kind ? 'off' : 'assertive');
  banner.dataset.kind = kind;
  say(banner, warning);
  document.body.classList.toggle('old', kind === 'stale' || kind === 'paused');
}

// --- what the reader does ----------------------------------------------------------------------

/** Shows the variant that a fragment names, once it is there. */
function goTo(key) {
  const known = state.summary && state.summary.variants.find(it => keyOf(it) === key);
  state.target = null;
  if (!known) return;
  if (!wanted(known)) {
    Object.assign(state, { search: '', show: 'all', namespace: '' });
    showFilters();
  }
  open(key);
  renderModels(state.summary);
  loadDetails(key).catch(() => {});
  const row = rows.get(key);
  if (row) {
    row.button.focus({ preventScroll: true });
    row.root.scrollIntoView({ block: 'start' });
  }
}

function fromHash() {
  const hash = location.hash.slice(1);
  if (!/^[^/]+\/[^/]+$/.test(hash)) return;
  // Links may be written by hand, with what need not be escaped left as it is.
  let parts;
  try { parts = hash.split('/').map(decodeURIComponent); } catch { return; }
  state.target = parts.map(encodeURIComponent).join('/');
  if (state.summary) goTo(state.target);
}

// --- the filters in the address ----------------------------------------------------------------

// The parameters of the address, with the values that need not be in it.
const FILTERS = { search: '', show: 'all', order: 'worst', namespace: '' };

function showFilters() {
  for (const name of Object.keys(FILTERS)) {
    const control = byId(name);
    if (name === 'namespace' && state.summary) renderNamespaces(state.summary.variants);
    control.value = state[name];
    // A value that is no choice is none.
    if (name !== 'namespace' && control.value !== state[name]) control.value = state[name] = FILTERS[name];
  }
  const query = new URLSearchParams();
  for (const [name, usual] of Object.entries(FILTERS)) if (state[name] !== usual) query.set(name, state[name]);
  const text = query.toString();
  history.replaceState(null, '', location.pathname + (text ? `?${text}` : '') + location.hash);
}

function fromQuery() {
  const query = new URLSearchParams(location.search);
  for (const [name, usual] of Object.entries(FILTERS)) state[name] = query.get(name) ?? usual;
  showFilters();
}

function theme(next) {
  if (next === 'auto') delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = next;
  say(byId('theme'), `Theme: ${next}`);
  try { localStorage.setItem('plimsoll-theme', next); } catch { /* Storage is a convenience. */ }
}

function listen() {
  const again = () => { state.resort = true; if (state.summary) renderModels(state.summary); };
  byId('controls').addEventListener('submit', event => event.preventDefault());
  for (const name of Object.keys(FILTERS)) {
    byId(name).addEventListener('input', event => {
      state[name] = event.target.value;
      showFilters();
      again();
    });
  }
  byId('attention-more').addEventListener('click', () => {
    state.allAttention = !state.allAttention;
    renderAttention(state.status.attention);
  });
  const fold = folded => () => {
    if (folded) for (const key of [...state.open]) close(key);
    for (const key of models.keys()) state.folded.set(key, folded);
    again();
  };
  byId('unfold').addEventListener('click', fold(false));
  byId('fold').addEventListener('click', fold(true));
  byId('theme').addEventListener('click', () => {
    const now = document.documentElement.dataset.theme || 'auto';
    theme({ auto: 'light', light: 'dark', dark: 'auto' }[now]);
  });
  byId('pause').addEventListener('click', event => {
    state.paused = !state.paused;
    say(event.target, state.paused ? 'Resume' : 'Pause');
    if (state.paused) clearTimeout(state.timer);
    else refresh();
    showAge();
  });
  document.addEventListener('keydown', event => {
    const typing = /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName);
    if (event.key === '/' && !typing && !event.ctrlKey && !event.metaKey) {
      event.preventDefault();
      byId('search').focus();
    }
    if (event.key === 'Escape' && !typing && state.open.size > 0) {
      const last = [...state.open].pop();
      close(last);
      const row = rows.get(last);
      if (row) row.button.focus();
    }
  });
  document.addEventListener('visibilitychange', () => { if (!document.hidden && !state.paused) refresh(); });
  window.addEventListener('hashchange', fromHash);
  let resizing = null;
  window.addEventListener('resize', () => {
    clearTimeout(resizing);
    resizing = setTimeout(() => { for (const row of rows.values()) if (row.history && row.details) drawHistory(row); }, 100);
  });
}

let kept = 'auto';
try { kept = localStorage.getItem('plimsoll-theme') || 'auto'; } catch { /* As above. */ }
theme(['light', 'dark'].includes(kept) ? kept : 'auto');
listen();
fromQuery();
fromHash();
refresh();
setInterval(showAge, 1000);
