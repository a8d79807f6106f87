// What is foreseen: the terms of a need, and what a replica carries, under the step that has them.

const BOUNDS = { itl: 'the time between tokens', seats: 'places in the batch', kv: 'the KV cache', budget: 'tokens in an iteration' };
const rate = value => orUnknown(value, it => it.toFixed(2));

// Lines of a name, a rate in requests a second, and whether it is one that decides.
function termLines({ foreseen, carries }) {
  const lines = [];
  if (foreseen) {
    for (const it of foreseen.terms) {
      const over = it.window_seconds === null ? '' : ` of ${it.window_seconds} s`;
      lines.push([`${it.words}${over}`, rate(it.per_second), it.decides]);
    }
    lines.push([`needed in ${foreseen.horizon_seconds.toFixed(0)} s`, rate(foreseen.total_per_second), true]);
    lines.push([`held since ${clockTime(new Date(foreseen.held_since))}`, rate(foreseen.held_per_second), true]);
    if (foreseen.bridge_per_second !== null) lines.push(['on standby until others serve', rate(foreseen.bridge_per_second), false]);
  }
  if (carries) {
    const by = carries.said_by === 'card' ? ', by a card' : '';
    lines.push([`capacity per replica${by}, limited by ${BOUNDS[carries.bound_by] || carries.bound_by}`, rate(carries.per_second), true]);
    if (carries.low_per_second !== null) {
      lines.push(['in 95 of 100 cases', `${rate(carries.low_per_second)} to ${rate(carries.high_per_second)}`, false]);
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
  const heads = el('thead', '', el('tr', '', head('What is foreseen'), head('Requests/s')));
  return [el('table', 'replicas terms', heads, el('tbody', '', ...rows))];
}
