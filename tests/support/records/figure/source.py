plt.plot(losses)
losses
