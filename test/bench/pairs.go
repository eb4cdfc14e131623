package main

import (
	"context"
	"crypto/sha256"
	"fmt"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"
)

// calibrationDrift is the change of the machine's speed within a pair that voids it.
const calibrationDrift = 0.10

// paired measures a and b interleaved, A B B A A B …, and gives the medians of both and of
// the ratio a/b pair by pair. Each returns a rate: more is better.
func paired(ctx context.Context, pairs int, a, b func(context.Context) (float64, error)) (ma, mb, ratio float64, note string, err error) {
	var as, bs, ratios []float64
	var noisy [3][]float64
	voided := 0
	for i := 0; len(ratios) < pairs && voided < (pairs+1)/2; i++ {
		first, second := a, b
		if i%2 == 1 {
			first, second = b, a
		}
		before := calibrate()
		x, err := first(ctx)
		if err != nil {
			return 0, 0, 0, "", err
		}
		y, err := second(ctx)
		if err != nil {
			return 0, 0, 0, "", err
		}
		after := calibrate()
		if i%2 == 1 {
			x, y = y, x
		}
		if math.Abs(after-before)/before > calibrationDrift {
			voided++
			noisy = [3][]float64{append(noisy[0], x), append(noisy[1], y), append(noisy[2], x/y)}
			continue
		}
		as, bs, ratios = append(as, x), append(bs, y), append(ratios, x/y)
	}
	kept := len(ratios)
	if kept < pairs { // better noisy figures that say so than none
		as, bs, ratios = append(as, noisy[0]...), append(bs, noisy[1]...), append(ratios, noisy[2]...)
	}
	note = fmt.Sprintf("%d pairs, ratio %.2f..%.2f", len(ratios), slices.Min(ratios), slices.Max(ratios))
	switch {
	case kept < pairs:
		note += fmt.Sprintf(", NOISY: the machine's speed moved in %d of them", voided)
	case voided > 0:
		note += fmt.Sprintf(", %d voided", voided)
	}
	return median(as), median(bs), median(ratios), note, nil
}

func median(v []float64) float64 {
	s := slices.Sorted(slices.Values(v))
	if n := len(s); n%2 == 0 {
		return (s[n/2-1] + s[n/2]) / 2
	}
	return s[len(s)/2]
}

// quantile of a sorted slice.
func quantile(sorted []time.Duration, q float64) time.Duration {
	if len(sorted) == 0 {
		return 0
	}
	return sorted[min(len(sorted)-1, int(q*float64(len(sorted))))]
}

// calibrate measures how fast one core hashes right now, MB/s; the best of three.
func calibrate() float64 {
	buf := make([]byte, 1<<20)
	best := 0.0
	for range 3 {
		start := time.Now()
		for range 16 {
			sha256.Sum256(buf)
		}
		best = max(best, 16/time.Since(start).Seconds())
	}
	return best
}

// cpuSeconds that a process used so far, user and system, from /proc.
func cpuSeconds(pid int) (float64, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	// The command name is in parentheses and may hold spaces.
	f := strings.Fields(string(b[strings.LastIndexByte(string(b), ')')+1:]))
	user, err := strconv.ParseFloat(f[11], 64)
	if err != nil {
		return 0, err
	}
	system, err := strconv.ParseFloat(f[12], 64)
	return (user + system) / 100, err // the kernel's USER_HZ is 100 on every Linux port that Go runs on
}

// residentPeak is the peak resident memory of a process, bytes (VmHWM).
func residentPeak(pid int) (float64, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(b)) {
		if rest, ok := strings.CutPrefix(line, "VmHWM:"); ok {
			kb, err := strconv.ParseFloat(strings.Fields(rest)[0], 64)
			return kb * 1024, err
		}
	}
	return 0, fmt.Errorf("no VmHWM of process %d", pid)
}
