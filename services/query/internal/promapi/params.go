package promapi

import (
	"errors"
	"fmt"
	"math"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"

	"lightmetrics.dev/lightmetrics/services/query/internal/answer"
	"lightmetrics.dev/lightmetrics/services/query/internal/regions"
)

// Bounds of times, as Prometheus has them.
var (
	minTime = time.Unix(math.MinInt64/1000+62135596801, 0).UTC()
	maxTime = time.Unix(math.MaxInt64/1000-62135596801, 999999999).UTC()

	minTimeText = minTime.Format(time.RFC3339Nano)
	maxTimeText = maxTime.Format(time.RFC3339Nano)
)

// parseTime reads Unix seconds, with a fraction, or RFC 3339.
func parseTime(s string) (time.Time, error) {
	if t, err := strconv.ParseFloat(s, 64); err == nil && !math.IsNaN(t) && !math.IsInf(t, 0) {
		sec, frac := math.Modf(t)
		if sec < float64(minTime.Unix()) || sec > float64(maxTime.Unix()) { // would wrap around
			return time.Time{}, fmt.Errorf("cannot parse %q to a valid timestamp: it is out of range", s)
		}
		// Samples have milliseconds; more digits are noise of the float.
		frac = math.Round(frac*1000) / 1000
		return time.Unix(int64(sec), int64(frac*float64(time.Second))).UTC(), nil
	}
	if t, err := time.Parse(time.RFC3339Nano, s); err == nil {
		return t, nil
	}
	// Clients that ask for everything send these texts, which time.Parse refuses.
	switch s {
	case minTimeText:
		return minTime, nil
	case maxTimeText:
		return maxTime, nil
	}
	return time.Time{}, fmt.Errorf("cannot parse %q to a valid timestamp", s)
}

func timeParam(r *http.Request, name string, absent time.Time) (time.Time, error) {
	v := r.FormValue(name)
	if v == "" {
		return absent, nil
	}
	t, err := parseTime(v)
	if err != nil {
		return t, badParam(name, fmt.Errorf("invalid time value for '%s': %w", name, err))
	}
	return t, nil
}

func requiredTime(r *http.Request, name string) (time.Time, error) {
	t, err := parseTime(r.FormValue(name))
	if err != nil {
		return t, badParam(name, err)
	}
	return t, nil
}

// parseDuration reads seconds or a Prometheus duration.
func parseDuration(s string) (time.Duration, error) {
	if d, err := strconv.ParseFloat(s, 64); err == nil {
		ts := d * float64(time.Second)
		if math.IsNaN(ts) || ts > float64(math.MaxInt64) || ts < float64(math.MinInt64) {
			return 0, fmt.Errorf("cannot parse %q to a valid duration. It overflows int64", s)
		}
		return time.Duration(ts), nil
	}
	if d, err := model.ParseDuration(s); err == nil {
		return time.Duration(d), nil
	}
	return 0, fmt.Errorf("cannot parse %q to a valid duration", s)
}

func durationParam(r *http.Request, name string) (time.Duration, error) {
	v := r.FormValue(name)
	if v == "" {
		return 0, nil
	}
	d, err := parseDuration(v)
	if err != nil {
		return 0, badParam(name, err)
	}
	return d, nil
}

// limitParam: 0 is no limit.
func limitParam(r *http.Request) (int, error) {
	v := r.FormValue("limit")
	if v == "" {
		return 0, nil
	}
	n, err := strconv.Atoi(v)
	if err == nil && n < 0 {
		err = errors.New("limit must be non-negative")
	}
	if err != nil {
		return 0, badParam("limit", err)
	}
	return n, nil
}

// freshParam reads what the answer must see: min_token, any number of times, and consistency.
func freshParam(r *http.Request) (answer.Fresh, error) {
	strong := false
	switch v := r.FormValue("consistency"); v {
	case "", "available":
	case "strong":
		strong = true
	default:
		return answer.Fresh{}, badParam("consistency", fmt.Errorf("%.32q is neither strong nor available", v))
	}
	f, err := answer.ParseFresh(r.Form["min_token"], strong)
	if err != nil {
		return f, badParam("min_token", err)
	}
	return f, nil
}

// regionsParam reads which regions the answer is of: regions, any number of times, each with names that commas separate.
func regionsParam(e *answer.Evaluator, r *http.Request) (regions.Scope, error) {
	var names []string
	for _, v := range r.Form["regions"] {
		for name := range strings.SplitSeq(v, ",") {
			if name != "" {
				names = append(names, name)
			}
		}
	}
	s, err := e.Scope(names)
	if err != nil {
		return s, badParam("regions", err)
	}
	return s, nil
}

// wholeParam reads whether the answer must be complete: partial_response, as in Thanos.
func wholeParam(r *http.Request) (bool, error) {
	v := r.FormValue("partial_response")
	if v == "" {
		return false, nil
	}
	partial, err := strconv.ParseBool(v)
	if err != nil {
		return false, badParam("partial_response", fmt.Errorf("%.32q is neither true nor false", v))
	}
	return !partial, nil
}

func matchersParam(e *answer.Evaluator, r *http.Request) ([][]*labels.Matcher, error) {
	if err := r.ParseForm(); err != nil {
		return nil, &apiError{badData, fmt.Errorf("error parsing form values: %w", err)}
	}
	sets, err := e.ParseSelectors(r.Form["match[]"])
	if err != nil {
		return nil, badParam("match[]", err)
	}
next:
	for _, ms := range sets {
		for _, m := range ms {
			if m != nil && !m.Matches("") {
				continue next
			}
		}
		return nil, badParam("match[]", errors.New("match[] must contain at least one non-empty matcher"))
	}
	return sets, nil
}
