// A promise and the two ways to settle it, for those who settle it elsewhere than they make it.

export interface Deferred<Value> {
  readonly promise: Promise<Value>;
  readonly resolve: (value: Value) => void;
  readonly reject: (error: Error) => void;
}

/** Nobody has to look at it: a rejection that nobody waits for is no failure of the process. */
export function deferred<Value>(): Deferred<Value> {
  let settle: Omit<Deferred<Value>, "promise"> | undefined;
  const promise = new Promise<Value>((resolve, reject) => {
    settle = { resolve, reject };
  });
  promise.then(undefined, () => undefined);
  return { promise, ...(settle as Omit<Deferred<Value>, "promise">) };
}
