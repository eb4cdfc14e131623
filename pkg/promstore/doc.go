// Package promstore shows pkg/live to the Prometheus query engine: a
// storage.Queryable over one snapshot, so that everything a query reads is of one version.
package promstore
