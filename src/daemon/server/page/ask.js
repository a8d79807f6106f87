// Requests to the daemon. An answer with a tag is kept, and asked for again with it: the daemon
// answers 304 without a body while nothing has changed.

const answers = new Map();      // {tag, answer, received}, by path

/** No whole answer has come. */
class Unanswered extends Error {}

async function ask(path, patience = PATIENCE) {
  const known = answers.get(path);
  let response, answer;
  try {
    const headers = known ? { 'If-None-Match': known.tag } : {};
    response = await fetch(path, { cache: 'no-store', headers, signal: AbortSignal.timeout(patience) });
    if (response.status === 304 && known) {
      known.received = performance.now();
      return known.answer;
    }
    answer = await response.json();
  } catch (error) {
    throw new Unanswered(error.name === 'TimeoutError' ? 'it does not answer in time'
      : response ? 'its answer cannot be read' : 'it cannot be reached');
  }
  if (!response.ok) throw new Error(answer.error || `its answer is ${response.status}`);
  const tag = response.headers.get('ETag');
  if (tag) answers.set(path, { tag, answer, received: performance.now() });
  return answer;
}

/** Forgets answers about a variant that is no longer shown. */
function forget(query) {
  for (const path of [...answers.keys()]) if (path.includes(query)) answers.delete(path);
}
