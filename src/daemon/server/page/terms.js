// The terms of the forecast and the capacity per replica, under the step that has them.

const BOUNDS = { itl: 'the time between tokens', seats: 'places in the batch', kv: 'the KV cache', budget: 'tokens in an iteration' };
const fine = value => orUnknown(value, it => it.toFixed(2));

// Lines of a name, a rate in requests a second, and whether it is one that decides.
function termLines({ foreseen, carries }) {
  const lines = [];
  if (foreseen) {
    for (const it of foreseen.terms) {
      const over = it.window_seconds === null ? '' : ` of ${it.window_seconds} s`;
      lines.push([`${it.words}${over}`, fine(it.per_second), it.decides]);
    }
    lines.push([`needed in ${foreseen.horizon_seconds.toFixed(0)} s`, fine(foreseen.total_per_second), true]);
    lines.push([`held since ${stamp(new Date(foreseen.held_since))}`, fine(foreseen.held_per_second), true]);
    if (foreseen.bridge_per_second !== null) lines.push(['on standby until others serve', fine(foreseen.bridge_per_second), false]);
  }
  if (carries) {
    const by = carries.said_by === 'card' ? ' from a card' : '';
    lines.push([`capacity per replica${by}, bound by ${BOUNDS[carries.bound_by] || carries.bound_by}`, fine(carries.per_second), true]);
    if (carries.low_per_second !== null) {
      lines.push(['in 95 of 100 cases', `${fine(carries.low_per_second)} to ${fine(carries.high_per_second)}`, false]);
    }
  }
  return lines;
}

// A table of these lines, or nothing where there are none.
function makeTerms(lines) {
  if (lines.length === 0) return [];
  const head = name => {
    const cell = el('th', '', name);
    cell.scope = 'col';
    return cell;
  };
  const rows = lines.map(([name, value, decides]) => {
    const what = el('th', '', name);
    what.scope = 'row';
    return el('tr', decides ? 'decides' : '', what, el('td', '', value));
  });
  const heads = el('thead', '', el('tr', '', head('Forecast'), head('Requests/s')));
  return [el('table', 'replicas terms', heads, el('tbody', '', ...rows))];
}
