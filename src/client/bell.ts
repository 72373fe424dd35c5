// For those who wait until something has changed: whoever changes it rings, and they look again.

export class Bell {
  #waiting: (() => void)[] = [];

  next(): Promise<void> {
    return new Promise((resolve) => void this.#waiting.push(resolve));
  }

  async until(isSo: () => boolean): Promise<void> {
    while (!isSo()) await this.next();
  }

  ring(): void {
    for (const wake of this.#waiting.splice(0)) wake();
  }
}
