// Topics made and deleted over HTTP, for tests of what cannot do it itself.

export interface Topics {
  makeTopic(topic: string, partitions: number): Promise<void>;
  deleteTopic(topic: string): Promise<void>;
}

export function httpTopics(http: string): Topics {
  const call = async (method: string, topic: string, body?: object) => {
    const response = await fetch(`${http}/topics/${topic}`, {
      method,
      headers: { "content-type": "application/json" },
      ...(body === undefined ? {} : { body: JSON.stringify(body) }),
    });
    if (!response.ok) throw new Error(`${method} of ${topic} was answered ${response.status}`);
  };
  return {
    makeTopic: (topic, partitions) => call("PUT", topic, { partitions }),
    deleteTopic: (topic) => call("DELETE", topic),
  };
}
