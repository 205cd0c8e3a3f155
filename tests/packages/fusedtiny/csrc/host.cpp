int launch(float *values, int count) {
  for (int index = 0; values && index < count; ++index) values[index] *= 2.0f;
  return 0;
}
