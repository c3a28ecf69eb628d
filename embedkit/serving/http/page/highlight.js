// The words of a query in a text.
import { make } from "./page.js";

const WORDS = /[\p{L}\p{N}]+/gu;
const SHORT = 3; // words no longer than this are in most texts and say little, unless they hold a digit
const STEM = 4; // two words of which one begins with the other are taken for forms of one word from here on

// The text in pieces, those that are words of the query as <mark>.
export function highlight(text, query) {
  const wanted = wordsOf(query);
  const pieces = [];
  let end = 0;
  for (const { 0: word, index } of text.matchAll(WORDS)) {
    if (!isWanted(word.toLowerCase(), wanted)) continue;
    pieces.push(text.slice(end, index), make("mark", "", word));
    end = index + word.length;
  }
  return [...pieces, text.slice(end)];
}

function wordsOf(query) {
  const all = [...query.toLowerCase().matchAll(WORDS)].map((found) => found[0]);
  const telling = all.filter((word) => word.length > SHORT || /\p{N}/u.test(word));
  return telling.length ? telling : all;
}

function isWanted(word, wanted) {
  return wanted.some((other) => {
    if (word === other) return true;
    const [short, long] = word.length < other.length ? [word, other] : [other, word];
    return short.length >= STEM && long.length - short.length < STEM && long.startsWith(short);
  });
}
