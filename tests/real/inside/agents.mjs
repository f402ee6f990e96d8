// Runs one agent of an SDK: agents.mjs MODULES BASE_URL NAME TASK. It prints the agent's last text.

import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

const [modules, baseURL, name, task] = process.argv.slice(2);
const { resolve } = createRequire(`${modules}/`);
const load = (module) => import(pathToFileURL(resolve(module)));
const system = "You explain programs. Read the files before you answer.";
const description = "Reads a file";
const parameters = { type: "object", properties: { path: { type: "string" } }, required: ["path"] };
const read = ({ path }) => readFileSync(path, "utf8");

const agents = {
  "ai-sdk": async () => {
    const [{ streamText, isStepCount, stepCountIs, tool, jsonSchema }, { createOpenAICompatible }] =
      await Promise.all([load("ai"), load("@ai-sdk/openai-compatible")]);
    const model = createOpenAICompatible({ name: "lab", baseURL: `${baseURL}/v1`, apiKey: "x" })("m");
    const readFile = tool({ description, inputSchema: jsonSchema(parameters), execute: async (a) => read(a) });
    const stopWhen = (isStepCount ?? stepCountIs)(9);
    return streamText({ model, instructions: system, prompt: task, tools: { read: readFile }, stopWhen }).text;
  },
  "openai-node": async () => {
    const { default: OpenAI } = await load("openai");
    const client = new OpenAI({ baseURL: `${baseURL}/v1`, apiKey: "x", maxRetries: 0 });
    const messages = [{ role: "system", content: system }, { role: "user", content: task }];
    const readFile = { name: "read", description, parameters, function: read, parse: JSON.parse };
    const tools = [{ type: "function", function: readFile }];
    return client.chat.completions.runTools({ model: "m", messages, tools, stream: true }).finalContent();
  },
};

console.log(await agents[name]());
