// Asks once through a helper of an official SDK: node_sdk.mjs MODULES BASE_URL API [PREVIOUS_RESPONSE_ID].
// Prints a JSON object per line: {event} for each one that the helper passes on, {connected} where it passes no
// keep-alive on, then {final} or {error}.

import { createRequire } from "node:module";

const [modules, baseURL, api, previous] = process.argv.slice(2);
const require = createRequire(`${modules}/`);
const OpenAI = require("openai").default ?? require("openai");
const Anthropic = require("@anthropic-ai/sdk").default ?? require("@anthropic-ai/sdk");
const openai = new OpenAI({ baseURL: `${baseURL}/v1`, apiKey: "x", maxRetries: 0 });
const anthropic = new Anthropic({ baseURL, apiKey: "x", maxRetries: 0 });
const messages = [{ role: "user", content: "find it" }];
const parameters = { type: "object", properties: { path: { type: "string" } } };
const tell = (line) => process.stdout.write(`${JSON.stringify(line)}\n`);

const helpers = {
  responses: async () => {
    const tools = [{ type: "function", name: "edit", parameters, strict: false }];
    const asked = { model: "m", input: "find it", tools };
    const stream = openai.responses.stream(previous ? { ...asked, previous_response_id: previous } : asked);
    for await (const event of stream) tell({ event });
    return stream.finalResponse();
  },
  retrieve: () => openai.responses.retrieve(previous),
  chat: async () => {
    const tools = [{ type: "function", function: { name: "edit", parameters } }];
    const stream = openai.chat.completions.stream({ model: "m", messages, tools });
    stream.on("chunk", (event) => tell({ event }));
    return stream.finalChatCompletion();
  },
  completions: async () => {
    const stream = await openai.completions.create({ model: "m", prompt: "find it", stream: true });
    const texts = [];
    for await (const event of stream) {
      tell({ event });
      texts.push(event.choices[0]?.text ?? "");
    }
    return { text: texts.join("") };
  },
  messages: async () => {
    const stream = anthropic.messages.stream({ model: "m", max_tokens: 99, messages });
    stream.on("connect", () => tell({ connected: true }));
    stream.on("streamEvent", (event) => tell({ event }));
    return stream.finalMessage();
  },
};

try {
  tell({ final: await helpers[api]() });
} catch (error) {
  tell({ error: `${error.name}: ${error.message}` });
}
