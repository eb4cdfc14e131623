package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"lightmetrics.dev/lightmetrics/internal/acceptance/epochs"
	"lightmetrics.dev/lightmetrics/internal/harness/cluster"
)

// epochsInterval is ingest.epochs_interval of the cases without marker reads: a tenth of the default, so that a run of the journal
// names epochs soon after its begin.
const epochsInterval = 3 * time.Second

// sparing adjusts settings so that collectors answer without marker reads.
func sparing(adjust func(string, map[string]any)) func(string, map[string]any) {
	return func(process string, settings map[string]any) {
		adjust(process, settings)
		if strings.HasPrefix(process, "collector-") {
			settings["marker_reads"], settings["epochs_interval"] = "epochs", epochsInterval.String()
		}
	}
}

// beginEpochs begins the log of epochs as a reconciler does that has kept earlier releases out for long enough.
func beginEpochs(ctx context.Context, c *cluster.Cluster) error {
	store, err := c.OpenStore(ctx)
	if err != nil {
		return err
	}
	l, w := epochs.NewLog(store, cluster.Authority), epochs.Writer{Store: store, By: "bench", At: time.Now().UnixNano()}
	if err := l.Begin(ctx, w); err != nil {
		return fmt.Errorf("begin the log of epochs: %w", err)
	}
	_, err = l.Name(ctx, w, nil)
	return err
}
