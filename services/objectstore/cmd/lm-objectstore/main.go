// Command lm-objectstore runs the embedded object store.
package main

import (
	"lightmetrics.dev/lightmetrics/internal/cli"
	"lightmetrics.dev/lightmetrics/services/objectstore"
)

func main() { cli.Main(objectstore.Command()) }
