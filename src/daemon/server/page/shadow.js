// Shadow policies: the replicas that each would request.

const SHADOW_COLUMNS = ['Policy', 'Desired', 'Against the policy in effect', 'Why'];

function makeShadow() {
  const root = section('Shadow policies, which have no effect', 'data shadow');
  const table = poolTable(SHADOW_COLUMNS);
  root.append(el('div', 'scroller', table.root));
  root.hidden = true;
  return { root, table };
}

function updateShadow(parts, variant) {
  const said = variant.shadows;
  parts.root.hidden = said.length === 0;
  const against = desired => {
    if (desired === null || variant.desired === null) return UNKNOWN;
    const more = desired - variant.desired;
    return more === 0 ? 'the same' : `${Math.abs(more)} ${more > 0 ? 'more' : 'fewer'}`;
  };
  fillPool(parts.table, said.map(it => [it.policy, count(it.desired), against(it.desired), it.because]));
}
