// llama.cpp (node-llama-cpp's prebuilt library) over a GGUF file: reads prompts as JSON from standard input, answers
// with seconds. Each request has a sequence of its own, and all are decoded as one batch.

import {availableParallelism} from "node:os";
import {createRequire} from "node:module";
import {createInterface} from "node:readline";
import {pathToFileURL} from "node:url";

// From the folder in which it's installed, which is the current one.
const installed = createRequire(`${process.cwd()}/package.json`);
const {getLlama, LlamaCompletion} = await import(pathToFileURL(installed.resolve("node-llama-cpp")));

const threads = availableParallelism();
const llama = await getLlama({gpu: false, build: "never", maxThreads: threads, logLevel: "error"});
const model = await llama.loadModel({modelPath: process.argv[2]});
const contexts = new Map();

// A context with as many sequences as prompts, and room for the longest of them and its answer, kept for later requests.
async function contextFor(prompts, maxTokens) {
  const longest = Math.max(...prompts.map((prompt) => model.tokenize(prompt).length));
  const contextSize = Math.ceil((longest + maxTokens + 1) / 128) * 128, sequences = prompts.length;
  const key = `${sequences} ${contextSize}`;
  if (!contexts.has(key)) {
    contexts.set(key, await model.createContext({sequences, contextSize, batchSize: 512, threads, flashAttention: true}));
  }
  return contexts.get(key);
}

async function complete(sequence, prompt, maxTokens) {
  await sequence.clearHistory();
  const completion = new LlamaCompletion({contextSequence: sequence});
  let made = 0;
  await completion.generateCompletion(prompt, {maxTokens, temperature: 0, onToken: (tokens) => { made += tokens.length; }});
  completion.dispose({disposeSequence: false});
  return made;
}

for await (const line of createInterface({input: process.stdin})) {
  const {prompts, new_tokens: maxTokens} = JSON.parse(line);
  const context = await contextFor(prompts, maxTokens);
  const sequences = prompts.map(() => context.getSequence());
  const started = performance.now();
  const made = await Promise.all(prompts.map((prompt, index) => complete(sequences[index], prompt, maxTokens)));
  // An answer that ends sooner counts for the tokens that it has.
  const seconds = (performance.now() - started) / 1e3;
  const share = made.reduce((sum, one) => sum + one, 0) / (maxTokens * prompts.length);
  sequences.forEach((sequence) => sequence.dispose());
  console.log(JSON.stringify({seconds: seconds / share}));
}
process.exit(0);
