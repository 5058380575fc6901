// The address bar holds the whole search, and the moment that is being watched.

export const read = () => new URLSearchParams(location.search);

const written = (parameters) => {
  const text = parameters.toString();
  return text ? `/?${text}` : "/";
};

export const go = (parameters) => {
  const target = written(parameters);
  if (target !== location.pathname + location.search) history.pushState(null, "", target);
};

// A moment does not make a new step for Back; leaving the player takes it out again.
export const watch = (hit, seconds) => {
  const parameters = read();
  parameters.set("clip", hit.clip_id);
  parameters.set("t", seconds.toFixed(1));
  history.replaceState(null, "", written(parameters));
};

export const leave = () => {
  const parameters = read();
  parameters.delete("clip");
  parameters.delete("t");
  history.replaceState(null, "", written(parameters));
};

export const linkTo = (hit, seconds) => {
  const parameters = read();
  parameters.set("clip", hit.clip_id);
  parameters.set("t", seconds.toFixed(1));
  return new URL(written(parameters), location.href).href;
};

// What a link names is shown even where the search does not find it any more.
export const linked = async () => {
  const parameters = read();
  const id = parameters.get("clip");
  if (!id) return null;
  const answer = await fetch(`/api/clips/${encodeURIComponent(id)}`);
  if (!answer.ok) return null;
  const clip = await answer.json();
  const asked = Number.parseFloat(parameters.get("t"));
  const start = Number.isFinite(asked) ? Math.min(Math.max(asked, 0), clip.duration) : clip.start;
  return asHit(clip, { start, end: Math.max(clip.end, start), best: start });
};

// A link to several moments: clip ids with their seconds, in order.
export const MAX_LINKED = 50;

export const linkToAll = (hits) => {
  const parts = hits.slice(0, MAX_LINKED).map(({ clip_id: id, moment }) =>
    `${id}@${moment.start.toFixed(2)}-${moment.end.toFixed(2)}`);
  return new URL(`/?moments=${parts.join(",")}`, location.href).href;
};

// Moments of such a link; clips that are gone are left out.
export const linkedMoments = async (text, signal) => {
  const parts = text.split(",").slice(0, MAX_LINKED).map((part) =>
    /^([0-9a-f]{16}-[0-9]{1,9})@([0-9.]{1,12})-([0-9.]{1,12})$/.exec(part)).filter(Boolean);
  const found = await Promise.all(parts.map(async ([, id, first, last]) => {
    const answer = await fetch(`/api/clips/${id}`, { signal });
    if (!answer.ok) return null;
    const clip = await answer.json();
    const start = Math.min(Number.parseFloat(first) || 0, clip.duration);
    const end = Math.min(Math.max(Number.parseFloat(last) || 0, start), clip.duration);
    return asHit(clip, { start, end, best: start });
  }));
  return found.filter(Boolean).map((hit, place) => ({ ...hit, rank: place + 1 }));
};

// Whether the text is on the clipboard; without a safe connection a page may not write there.
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
