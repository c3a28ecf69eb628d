// The words of a query in a text.
import { make } from "./page.js";

const WORDS = /[\p{L}\p{N}]+/gu;
const SHORT = 3; // words no longer than this are in most texts and say little, unless they hold a digit
const PAUSE = /[.!?…。！？]\s|\n\s*/u;
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

// The passage of a text that has most words of a query, as in passages.py: its first character and its end.
export function findPassage(text, query, most = 240) {
  if (text.length <= most) return [0, text.length];
  const [first, last] = densest(text, wordsOf(query), most);
  const earliest = Math.max(0, first - Math.floor((most - (last - first)) / 2));
  const pause = text.slice(earliest, first).match(PAUSE) ?? text.slice(earliest, first).match(/\s/u);
  const start = !earliest ? 0 : pause ? earliest + pause.index + pause[0].length : first;
  if (start + most >= text.length) return [start, text.length];
  const rest = text.slice(last, start + most);
  const ends = [...rest.matchAll(new RegExp(PAUSE, "gu"))].map((one) => one.index + 1);
  const spaces = [...rest.matchAll(/\s/gu)].map((one) => one.index);
  return [start, last + ((ends.length ? ends : spaces).at(-1) ?? rest.length)];
}

function densest(text, wanted, most) {
  const matches = [...text.matchAll(WORDS)]
    .map(({ 0: word, index }) => [index, index + word.length, wanted.find((one) => isWanted(word.toLowerCase(), [one]))])
    .filter((match) => match[2] !== undefined);
  let best = 0;
  let place = [0, 0];
  matches.forEach(([start], number) => {
    const near = matches.slice(number).filter((match) => match[1] - start <= most);
    const count = new Set(near.map((match) => match[2])).size + near.length / 1000;
    if (count > best) [best, place] = [count, [start, near.at(-1)?.[1] ?? start]];
  });
  return place;
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
