// Embed texts with transformers.js: node embed.mjs REPOSITORY < texts.json > results.json
import { readFileSync } from "node:fs";
import { basename, dirname } from "node:path";

import { AutoModel, AutoTokenizer, env } from "@huggingface/transformers";

const repository = process.argv[2];
env.allowRemoteModels = false;
env.localModelPath = dirname(repository);

const tokenizer = await AutoTokenizer.from_pretrained(basename(repository));
const model = await AutoModel.from_pretrained(basename(repository));
const results = [];
for (const text of JSON.parse(readFileSync(0, "utf8"))) {
  const inputs = tokenizer([text], { truncation: true });
  const { sentence_embedding } = await model(inputs);
  results.push({ ids: Array.from(inputs.input_ids.data, Number), embedding: Array.from(sentence_embedding.data) });
}
console.log(JSON.stringify({ version: env.version, results }));
