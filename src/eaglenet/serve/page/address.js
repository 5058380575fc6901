// The address bar contains the whole search, and the moment that is playing.

export const read = () => new URLSearchParams(location.search);

const addressOf = (parameters) => {
  const text = parameters.toString();
  return text ? `/?${text}` : "/";
};

export const go = (parameters, state) => {
  const target = addressOf(parameters);
  if (target !== location.pathname + location.search) history.pushState(state, "", target);
};

// A moment is no entry of the history; closing the player removes it from the address.
export const watch = (hit, seconds) => {
  const parameters = read();
  parameters.set("clip", hit.clip_id);
  parameters.set("t", seconds.toFixed(1));
  history.replaceState(history.state, "", addressOf(parameters));
};

export const leave = () => {
  const parameters = read();
  parameters.delete("clip");
  parameters.delete("t");
  history.replaceState(history.state, "", addressOf(parameters));
};

export const linkTo = (hit, seconds) => {
  const parameters = read();
  parameters.set("clip", hit.clip_id);
  parameters.set("t", seconds.toFixed(1));
  return new URL(addressOf(parameters), location.href).href;
};

// The moment of a link, which is shown even if the search no longer finds it.
export const linkedMoment = async () => {
  const parameters = read();
  const id = parameters.get("clip");
  if (!id) return null;
  const answer = await fetch(`/api/clips/${encodeURIComponent(id)}`);
  if (!answer.ok) return null;
  const clip = await answer.json();
  const seconds = Number.parseFloat(parameters.get("t"));
  const start = Number.isFinite(seconds) ? Math.min(Math.max(seconds, 0), clip.duration) : clip.start;
  return asHit(clip, { start, end: Math.max(clip.end, start), best: start });
};

// Link to several moments: clip ids and spans, in order.
export const MAX_LINKED = 50;

export const linkToAll = (hits) => {
  const parts = hits.slice(0, MAX_LINKED).map(({ clip_id: id, moment }) =>
    `${id}@${moment.start.toFixed(2)}-${moment.end.toFixed(2)}`);
  return new URL(`/?moments=${parts.join(",")}`, location.href).href;
};

export const numLinked = (text) => Math.min(text.split(",").length, MAX_LINKED);

// Moments of such a link, without clips that are no longer indexed.
export const linkedMoments = async (text, signal) => {
  const parts = text.split(",").slice(0, MAX_LINKED).map((part) =>
    /^([0-9a-f]{16}-[0-9]{1,9})@([0-9.]{1,12})-([0-9.]{1,12})$/.exec(part)).filter(Boolean);
  const moments = await Promise.all(parts.map(async ([, id, first, last]) => {
    const answer = await fetch(`/api/clips/${id}`, { signal });
    if (!answer.ok) return null;
    const clip = await answer.json();
    const start = Math.min(Number.parseFloat(first) || 0, clip.duration);
    const end = Math.min(Math.max(Number.parseFloat(last) || 0, start), clip.duration);
    return asHit(clip, { start, end, best: start });
  }));
  return moments.filter(Boolean).map((hit, index) => ({ ...hit, rank: index + 1 }));
};

// Copy a text; returns false if the browser refuses, as without a secure connection.
export const copy = async (text) => {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    return false;
  }
};

export const asHit = (clip, moment) => ({
  rank: 0, score: null, more: [], transcript: [], matched_in: [], ...clip, moment,
});
