// Says when a query is in a language that the model was not trained on.

const hint = document.querySelector("#language");

// Frequent short words; two of them, or letters of another script, tell a language from English.
const FOREIGN = {
  German: "der die das ein eine einen und mit auf im ist nicht von zu dem den spielt",
  French: "le la les un une des et avec sur dans est du au aux qui",
  Spanish: "el los las un una y con en del que est\u00e1 por para",
  Italian: "il lo gli un una e con nel della che di sul",
  Portuguese: "o os as um uma e com em do da que no na",
  Dutch: "de het een en met op van is niet in",
};
const words = Object.entries(FOREIGN).map(([name, list]) => [name, new Set(list.split(" "))]);

const languageOf = (query) => {
  if (/[^\p{Script=Latin}\p{Script=Common}\p{Script=Inherited}]/u.test(query)) return "another script";
  const found = query.toLowerCase().match(/\p{L}+/gu) ?? [];
  const scores = words.map(([name, list]) => [found.filter((word) => list.has(word)).length, name]);
  const [count, name] = scores.sort((a, b) => b[0] - a[0])[0];
  const isAccented = /[\u00c0-\u024f]/.test(query);
  return count >= 2 || (count && isAccented) ? name : "";
};

let isEnglishOnly = false;

export const setUp = (languages) => { isEnglishOnly = languages === "English"; };

export const show = (query) => {
  const language = isEnglishOnly && query ? languageOf(query) : "";
  hint.textContent = language
    ? `This looks like ${language}. The model of this store was trained on English; describe the moment in English for better results.`
    : "";
  hint.hidden = !language;
};
