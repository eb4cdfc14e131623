package journal

import (
	"context"
	"errors"
	"fmt"

	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/record"
)

// End ends a run whose writer is dead for certain, by a fence behind its last segment. A run that has
// ended, or never began, is left as it is.
func End(ctx context.Context, s WriterStore, run RunID) error {
	for range maxRounds {
		at := Position{Run: run, Segment: 1}
		head, _, err := ReadHead(ctx, s)
		if err != nil {
			return fmt.Errorf("end run %s: %w", run, err)
		}
		if h := head.Run(run); h != nil {
			if h.Ended > 0 {
				return nil
			}
			at.Segment = max(1, h.Folded)
		} else {
			first, err := readSegment(ctx, s, Position{Run: run})
			switch {
			case errors.Is(err, objstore.ErrNotFound):
				return nil // it never began, or ended so long ago that the head has forgotten it
			case err != nil:
				return fmt.Errorf("end run %s: %w", run, err)
			case first.Ends():
				return nil
			}
		}
		last, err := endAfter(ctx, s, at)
		if err != nil {
			return fmt.Errorf("end run %s: %w", run, err)
		}
		// "Not there" counts only if the head has not gone beyond it, as for every follower: else a segment
		// was folded and deleted, the fence stands too early, and ends nothing.
		if head, _, err = ReadHead(ctx, s); err != nil {
			return fmt.Errorf("end run %s: %w", run, err)
		}
		if h := head.Run(run); h == nil || h.Ended > 0 || h.Folded <= last {
			return nil
		}
	}
	return fmt.Errorf("end run %s: %w: it is being folded", run, objstore.ErrUnavailable)
}

// endAfter looks for the end from a segment on, creates a fence where there is none, and returns where it is.
func endAfter(ctx context.Context, s WriterStore, at Position) (uint64, error) {
	for {
		seg, err := readSegment(ctx, s, at)
		switch {
		case errors.Is(err, objstore.ErrNotFound):
			if err := Fence(ctx, s, at); err != nil {
				return 0, err
			}
		case err != nil:
			return 0, err
		case seg.Ends():
			return at.Segment, nil
		default:
			at.Segment++
		}
	}
}

func readSegment(ctx context.Context, g objstore.Getter, at Position) (*Segment, error) {
	s, _, err := record.Read(ctx, g, at.Key(), FileKind, ParseSegment)
	return s, err
}
