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

export const asHit = (clip, moment) => ({
  rank: 0, score: null, more: [], transcript: [], matched_in: [], ...clip, moment,
});
